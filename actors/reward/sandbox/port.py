"""`Sandbox`: port with its `Work`, `Limits` and `Outcome`. Pure.

A program is a function of ours (`module:function`, bytes in, bytes out) that is called in a process of its
own. It may execute or parse model output. Its result is untrusted.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

STARVED = 10
"""A program without a processor may take up to so many times its wall time."""


class Isolation(StrEnum):
    """The kinds of isolation of programs from the host and from each other."""

    NAMESPACES = "namespaces"
    """bubblewrap around the worker, namespaces of its own for each program, Landlock and seccomp inside."""
    LANDLOCK = "landlock"
    """Landlock and seccomp, for hosts that allow no user namespaces."""


class Status(StrEnum):
    """How a program ended. All but the last two are the program's own fault, and score."""

    OK = "ok"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT = "output"
    CRASHED = "crashed"
    FORBIDDEN = "forbidden"
    SANDBOX_FAILED = "sandbox_failed"
    """The sandbox's own failure: the program was not run, or not to its end. Never scores."""
    OVERLOADED = "overloaded"
    """The host had no processor for the program. Never scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one program and all its processes, together if the kernel can count so.

    cpu_s: processor seconds; wall_s: wall seconds, except those in which it was ready without a processor;
    this limit ends sleeping programs. memory_bytes: resident memory. processes: at a time, threads included.
    tmp_bytes, tmp_files: in its folder /tmp. output_bytes: of stdout and of stderr each. result_bytes: of
    what the function returns. address_bytes: mapped memory of one process, beyond the function's own; 0:
    memory_bytes. More is for programs that map much more than they use, such as compilers.
    """

    cpu_s: float = 10.0
    wall_s: float = 20.0
    memory_bytes: int = 512 * 2**20
    processes: int = 32
    open_files: int = 64
    file_bytes: int = 16 * 2**20
    tmp_bytes: int = 64 * 2**20
    tmp_files: int = 1024
    output_bytes: int = 2**20
    result_bytes: int = 2**20
    address_bytes: int = 0

    def __post_init__(self) -> None:
        bad = [name for name in self.__slots__ if getattr(self, name) <= 0 and name != "address_bytes"]
        if bad:
            raise ValueError(f"{', '.join(bad)}: expected a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Call `function` ("module:name", one of ours) with `payload` in a process of its own.

    each_s: above 0 the process stays and is given one payload after the other, with so much processor time
    for each; `limits` are of all. For functions that read what a model wrote and never execute it.
    """

    function: str
    payload: bytes
    limits: Limits = Limits()
    each_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a program. result: the function's result, b"" unless `status` is OK; stdout, stderr: its
    output, cut at the limit; detail: the cause of its end as text; limited: a limit of the whole ended it, so
    that another attempt would end as this one."""

    status: Status
    result: bytes = b""
    stdout: bytes = b""
    stderr: bytes = b""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_bytes: int = 0
    detail: str = ""
    limited: bool = False


class Sandbox(Protocol):
    """Runs one program at a time. Calls arrive from one thread."""

    @property
    def isolation(self) -> Isolation: ...

    def run(self, work: Work) -> Outcome:
        """Run a program to its end or to its limit. Raises nothing: a failure is an `Outcome`."""

    def ask(self, work: Work) -> Outcome:
        """Have a program that stays (`Work.each_s`) do `work.payload`. Raises nothing."""

    def close(self) -> None:
        """End the sandbox with all that runs in it."""
