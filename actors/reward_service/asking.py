"""ScoringAsk: one response to score, whichever wire it came by, and why it may have no score.

Owns these types, those of a program to run, and the port `Scoring`. Pure: no HTTP is known here, so the wires
are written and tested against a fake of `Scoring`.
"""

from dataclasses import dataclass
from typing import Protocol

from gleaner.actors.gateway.ask import AskError
from gleaner.actors.protocol.reward import CodeRan, RewardState
from gleaner.actors.reward.entries import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringAsk:
    """One response.

    task: of the settings. entry: the problem, as it came with the request. batch: key of the items of the
    client that are a batch while they are open together. named: the batch as the client named it, "" if it
    named none. job: of the client. deadline_s: for the verdict.
    """

    task: str
    entry: Entry
    response: str
    batch: str = ""
    named: str = ""
    job: str = ""
    deadline_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Scored:
    """The score of a response, and its status: one of the program's (`gleaner.actors.reward.verdicts`)."""

    score: float
    status: str = "ok"
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAsk:
    """A program to run. language: as clients name it. run_s, compile_s: processor seconds."""

    language: str
    code: str
    stdin: str
    run_s: float
    compile_s: float


class Outage(AskError):
    """There is no score, and the response is not the reason."""

    retryable = True
    retry_after_s = 2.0


class QueueFull(AskError):
    """So many items wait that no more are taken."""

    retryable = True


class TooLong(AskError):
    """A part of a request is longer than what is scored. field: of the body."""

    def __init__(self, field: str, size_bytes: int, most_bytes: int) -> None:
        super().__init__(f"{field}: {size_bytes} bytes, at most {most_bytes} are scored")
        self.field = field


class UnknownResult(AskError):
    """No task of this id is known: it never was, or its result was forgotten."""


class Scoring(Protocol):
    """Scores responses."""

    async def score(self, ask: ScoringAsk) -> Scored:
        """The score. A caller that is cancelled cancels its item. Raises Outage, QueueFull."""

    async def announce(self, job: str, batch: str, expected: int, kind: str = "") -> str:
        """A batch that a client of this job named begins, of about so many responses; its name in the state.
        kind: by which its history is not that of others of its name. A repetition changes nothing. Raises
        QueueFull."""

    async def end(self, job: str, batch: str) -> str:
        """No verdict of this batch is needed any more, also of one that is not known; its name in the
        state."""

    async def run(self, ask: RunAsk) -> CodeRan:
        """What a program did. A caller that is cancelled cancels it. Raises Outage, QueueFull."""

    async def state(self, request: str = "") -> RewardState:
        """Workers, hosts, jobs and batches. request: see `RewardStatus`. Raises Outage."""


class KnownTasks(Protocol):
    """The tasks of the settings."""

    @property
    def names(self) -> list[str]: ...

    def check(self, task: str, entry: Entry) -> str:
        """The error of a problem for the verifier of a task, "" for none."""
