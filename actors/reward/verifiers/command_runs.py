"""Runs of a command on files, inside the sandbox: a compiler, or what it made.

It knows inputs and no expected output. A run gets files as bytes, a command with limits, and inputs for its
stdin; it gives the output of each input, and one file as bytes.
"""

import contextlib
import os
import resource
import signal
import stat
from collections.abc import Mapping
from typing import NoReturn

import msgspec

from gleaner.actors.reward.verifiers.stdin_runs import RAISED, TEXT, Result, StdinTests, write_all

NO_COMMAND = "no command"
"""Result kind: the command itself is not there, which is no fault of a response."""


class CommandWork(msgspec.Struct, frozen=True, kw_only=True):
    """files: content by name, all executable. command: its words; the first one is a path. environment: in
    addition. inputs: of stdin, a run for each. test_s: processor time of one. stop: at the first that fails.
    trusted: the command is no file of this run, so that it must exist. take: name of the file that is given
    back, of at most take_bytes; "" for none."""

    files: dict[str, bytes]
    command: list[str]
    environment: dict[str, str] = {}
    inputs: list[bytes]
    test_s: float
    stop: bool = True
    trusted: bool = False
    take: str = ""
    take_bytes: int = 0


class CommandResults(msgspec.Struct, frozen=True, kw_only=True):
    """results: of the inputs, fewer where `stop` ended them. errors: the beginning of the last one's stderr.
    taken: the file that was asked for, None where there is none or it is too large. taken_bytes: its size."""

    results: list[Result]
    errors: str = ""
    taken: bytes | None = None
    taken_bytes: int = 0


_work: msgspec.msgpack.Decoder[CommandWork] = msgspec.msgpack.Decoder(CommandWork)


def run(payload: bytes) -> bytes:
    """MessagePack of `CommandResults`. payload: of a `CommandWork`."""
    asked = _work.decode(payload)
    if asked.trusted and not os.path.exists(asked.command[0]):
        missing = NO_COMMAND, f"{asked.command[0]} cannot be reached inside the sandbox", 0.0
        return msgspec.msgpack.encode(CommandResults(results=[missing]))
    for name, content in asked.files.items():
        place(name, content)
    tests = StdinTests()
    results: list[Result] = []

    def become() -> NoReturn:
        execute(asked.command, asked.environment)

    for given in asked.inputs:
        results.append(tests.run(become, given, asked.test_s))
        if asked.stop and results[-1][0] != TEXT:
            break
    errors = tests.errors() if results and results[-1][0] == RAISED else ""
    taken, size = _taken(asked.take, asked.take_bytes) if asked.take else (None, 0)
    found = CommandResults(results=results, errors=errors, taken=taken, taken_bytes=size)
    return msgspec.msgpack.encode(found)


def place(name: str, content: bytes) -> None:
    """Write an executable file into the program's folder."""
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
    try:
        write_all(fd, content)
    finally:
        os.close(fd)


def execute(command: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Become a command, with the stack that it may have at most and without Python's handling of signals."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))
    try:
        os.execvpe(command[0], command, {**os.environ, **environment})
    except (OSError, ValueError) as error:
        os.write(2, f"it cannot be executed: {error}".encode("utf-8", "replace")[:500])
        os._exit(127)


def _taken(name: str, most: int) -> tuple[bytes | None, int]:
    """A file that the command made, and its size."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None, 0
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most:
            return None, found.st_size
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(most), found.st_size
    finally:
        os.close(fd)
