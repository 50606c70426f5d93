"""A run of one program with its whole output, inside the sandbox: Python, or a command.

It gives what the program wrote, its exit code and its processor time, and compares nothing.
"""

import os
import signal
from typing import NoReturn

import msgspec

from gleaner.actors.reward.verifiers.command_runs import execute, place
from gleaner.actors.reward.verifiers.program_runs import be_program, compiled
from gleaner.actors.reward.verifiers.stdin_runs import StdinTests


class PlainWork(msgspec.Struct, frozen=True, kw_only=True):
    """source: in Python; "" for a command. files: content by name, all executable. command: its words. given:
    stdin. run_s: processor time."""

    source: str = ""
    files: dict[str, bytes] = {}
    command: list[str] = []
    given: bytes = b""
    run_s: float


class PlainResult(msgspec.Struct, frozen=True, kw_only=True):
    """return_code: below 0 for a signal. late: its processor time was over. Output is cut."""

    return_code: int
    late: bool
    stdout: bytes
    stderr: bytes
    cpu_s: float


_work: msgspec.msgpack.Decoder[PlainWork] = msgspec.msgpack.Decoder(PlainWork)


def run(payload: bytes) -> bytes:
    """MessagePack of a `PlainResult`. payload: of a `PlainWork`."""
    asked = _work.decode(payload)
    for name, content in asked.files.items():
        place(name, content)
    code = None
    if not asked.command:
        code, problem = compiled(asked.source)
        if code is None:
            failed = PlainResult(return_code=1, late=False, stdout=b"", stderr=problem.encode(), cpu_s=0.0)
            return msgspec.msgpack.encode(failed)
    tests = StdinTests()

    def become() -> NoReturn:
        if asked.command:
            execute(asked.command, {})
        be_program(code)

    status, cpu_s, _ = tests.child(become, asked.given, asked.run_s)
    late = cpu_s > asked.run_s or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU)
    found = PlainResult(
        return_code=os.waitstatus_to_exitcode(status),
        late=late,
        stdout=tests.output(),
        stderr=tests.errors().encode("utf-8", "replace"),
        cpu_s=cpu_s,
    )
    return msgspec.msgpack.encode(found)
