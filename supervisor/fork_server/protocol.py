"""Messages between a process and its fork server, on a pair of SOCK_SEQPACKET sockets.

The server first sends `Ready`. Each request then carries one file descriptor, for the output of the child,
and gets one `Forked` as its reply.
"""

import msgspec

MAX_REQUEST_BYTES = 128 << 10
"""Limit of a request; a process with a larger environment is executed as before."""
MAX_REPLY_BYTES = 4096


class Ready(msgspec.Struct, frozen=True):
    """The server has imported its modules. threads: its own; a process with more than one must not fork."""

    threads: int


class ForkRequest(msgspec.Struct, frozen=True):
    """Run `python -m argv[2] argv[3:]`. argv: the whole command line, as lists of processes show it. env: its
    whole environment. parent: the pid of the requesting process, whose child it becomes."""

    argv: list[str]
    env: dict[str, str]
    parent: int


class Forked(msgspec.Struct, frozen=True):
    """The child's pid; 0 and the reason where there is none."""

    pid: int
    error: str = ""
