"""Exit codes of a node's processes, and which failure gives which.

The codes are a contract: scripts, systemd units and the local provider act on them. The failures are imported
where they are distinguished: a command that only finds an agent does not wait for these imports.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gleaner.supervisor import SupervisorFailed

OK = 0
FAILED = 1  # something unforeseen
USAGE = 2  # arguments, settings or keys that cannot be used
NOT_RUNNING = 3  # no node agent runs on that state directory
IN_USE = 4  # the port, the state directory or the lease of the head is another process's
NO_STATE = 5  # the state directory is full, read-only or not a directory
DAMAGED = 6  # a journal, or every checkpoint, is damaged past repair
CUT_SHORT = 8  # the ordered end was cut short: by a second signal, or by its deadline
GAVE_UP = 7  # the root supervisor: a child failed too often, or did not start
LOST = 9  # the lease of the head: another head is active, or may be
HOPELESS = frozenset({USAGE, DAMAGED})  # starting it again would end the same way
MEANINGS = (
    "exit codes: 0 done; 1 failed; 2 arguments, settings or keys that cannot be used; 3 no node agent runs "
    "there; 4 port, state directory or lease in use; 5 state directory full or not writable; 6 journal "
    "damaged; 7 its root supervisor gave up; 8 its ordered end was cut short; 9 it lost the lease of the head"
)


class CannotRun(Exception):
    """A process of a node cannot start or continue; `code` is its exit code, `str` explains what to do."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class UnmetRequirements(CannotRun):
    """This host lacks what its part of a job needs: it runs nothing of that job, and stays for the next."""

    def __init__(self, lacks: Sequence[str]) -> None:
        super().__init__(USAGE, "; ".join(lacks))


class NoSpace(CannotRun):
    """The disk of the state directory is full; it may have space again later."""

    def __init__(self, text: str) -> None:
        super().__init__(NO_STATE, text)


def as_cannot_run(problem: BaseException) -> CannotRun | None:
    """The exit code and the text for a failure that has one, or None for a defect."""
    if isinstance(problem, CannotRun):
        return problem
    import asyncio

    from gleaner.configs.load import ConfigError
    from gleaner.configs.trace import TraceError
    from gleaner.supervisor import Hopeless, JournalError, SupervisorFailed, WorkHung
    from gleaner.transport.keys import BadKeys, RefusedToListen
    from gleaner.transport.sockets import CannotListen

    if isinstance(problem, SupervisorFailed):
        return CannotRun(_code_of(problem), str(problem))
    if isinstance(problem, CannotListen):
        return CannotRun(IN_USE, problem.strerror or str(problem))
    if isinstance(problem, ConfigError | TraceError | BadKeys | RefusedToListen):
        return CannotRun(USAGE, str(problem))
    if isinstance(problem, WorkHung):
        return CannotRun(GAVE_UP, str(problem))  # the next process may go on
    if isinstance(problem, Hopeless):
        return CannotRun(DAMAGED, str(problem))
    if isinstance(problem, JournalError):
        return CannotRun(NO_STATE, str(problem))
    if isinstance(problem, asyncio.CancelledError | KeyboardInterrupt):
        return CannotRun(FAILED, "interrupted")
    return None


def _code_of(failure: "SupervisorFailed") -> int:
    """The exit code of the child that failed first, if it has one; a child process left with its own."""
    if failure.first is not None:
        known = as_cannot_run(failure.first)
        return known.code if known is not None else GAVE_UP
    code = failure.causes[-1].code if failure.causes else None
    return code if code in HOPELESS else GAVE_UP
