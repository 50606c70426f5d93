"""Process of a fork server: it imports modules, then forks children that run one of our modules each.

It has one thread and opens nothing, so that a fork copies no lock and no socket. A child is forked twice: the
process between them ends at once, and the kernel then gives the child to the requesting process, its nearest
ancestor that is a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER). The requesting process collects it, signals
it and takes it along when it ends, as a child that it started itself.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import runpy
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from gleaner.supervisor.fork_server.protocol import MAX_REQUEST_BYTES, Forked, ForkRequest, Ready
from gleaner.supervisor.parent import bind_to_parent

TITLE_BYTES = 4096
"""Space for the command line of a child, reserved by an argument of the server."""
PADDING = "." * TITLE_BYTES
REPARENT_S = 5.0  # for the kernel to give the child to the requesting process; microseconds
_ADOPTED_POLL_S = 0.0005
_DECODER = msgspec.msgpack.Decoder(ForkRequest)


class _Image:
    """Whether this process was forked by a fork server, and holds its modules."""

    held = False


def holds_image() -> bool:
    """Whether this process was forked by a fork server: it has imported everything that its children need."""
    return _Image.held


def preload(modules: Sequence[str]) -> None:
    """Import what children use. Raises ImportError."""
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would write to, and so copy, every page with an object


def serve(connection: socket.socket) -> None:
    """Fork children until the requesting process closes `connection`; then end this process.

    Returns in a forked child only, after the child's module has run.
    """
    connection.send(msgspec.msgpack.encode(Ready(_threads())))
    while True:
        data, files, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 1)
        if not data:
            os._exit(0)
        request = _DECODER.decode(data)
        try:
            pid = _fork_twice(request)
        except OSError as problem:
            connection.send(msgspec.msgpack.encode(Forked(0, str(problem))))
        else:
            if pid == 0:
                connection.close()
                _become(request, files[0])
                return
            connection.send(msgspec.msgpack.encode(Forked(pid)))
        for file in files:
            os.close(file)


def _fork_twice(request: ForkRequest) -> int:
    """The pid of the grandchild, once it belongs to the requesting process; 0 in the grandchild.

    Raises OSError where no process could be made.
    """
    answer, report = os.pipe()
    try:
        between = os.fork()
    except OSError:
        os.close(answer)
        os.close(report)
        raise
    if between == 0:
        os.close(answer)
        between = os.getpid()
        try:
            pid = os.fork()
            made = str(pid)
        except OSError as problem:
            pid, made = -1, f"0 {problem}"
        if pid == 0:
            os.close(report)
            _await_parent(request.parent, between)
            return 0
        with contextlib.suppress(OSError):  # the server may be dead: this process must end all the same
            os.write(report, made.encode())
        os._exit(0)
    os.close(report)
    with open(answer, "rb") as file:
        pid_text, _, error = file.read().decode().partition(" ")
    os.waitpid(between, 0)  # by now the kernel has handed its child over
    if pid_text in ("", "0"):
        raise OSError(error or "the process between ended without an answer")
    return int(pid_text)


def _await_parent(parent: int, between: int) -> None:
    """Wait until this process is a child of `parent`; end it where it became the child of another one."""
    until_s = time.monotonic() + REPARENT_S
    while (now := os.getppid()) != parent:
        if now != between or time.monotonic() > until_s:
            os._exit(1)
        time.sleep(_ADOPTED_POLL_S)


def _become(request: ForkRequest, output: int) -> None:
    """Run the requested module as the main module of this process."""
    _Image.held = True
    os.setpgid(0, 0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(request.env)
    set_title(request.argv)
    _python, _m, module, *arguments = request.argv
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def set_title(argv: Sequence[str]) -> None:
    """Show `argv` as the command line of this process, where its own is long enough (proc(5), cmdline)."""
    title = b"".join(word.encode() + b"\0" for word in argv)
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end: fields 48 and 49
    if len(title) <= end - start:
        ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def fork_server(parent: int) -> tuple[socket.socket | None, int]:
    """Fork a server from this process, which has one thread: the socket to it and its pid, or (None, 0) in a
    child that the server forked, after the child's module has run. Raises OSError."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        pid = os.fork()
    except OSError:
        ours.close()
        its.close()
        raise
    if pid:
        its.close()
        return ours, pid
    ours.close()
    try:
        bind_to_parent(parent)
        os.setpgid(0, 0)
        set_title([sys.executable, "-m", "gleaner.supervisor.fork_server"])
        serve(its)
    except OSError:  # the caller's way out of it, which is to go on without a server, is for the caller alone
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    return None, 0


def main(arguments: Sequence[str]) -> NoReturn:
    """`FD MODULES PADDING`: import the modules and serve the socket with this number."""
    descriptor, modules, _padding = arguments
    set_title([sys.executable, "-m", "gleaner.supervisor.fork_server", modules])
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    preload(importlib.import_module(modules).MODULES)
    serve(connection)
    sys.exit(0)
