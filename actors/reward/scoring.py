"""`ScoringWorker`: port to a scoring process, with one request at a time.

Owns the types and the port. Pure: `worker_process` starts real ones. Every wait on one has a deadline, and
every end of one has a name.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gleaner.actors.reward import pipe


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The start parameters of a worker. `scorer`: MODULE:FACTORY; `config`: a JSON object for it.

    `memory_bytes` limits the memory of the process; `start_s` the time until its scorer is loaded.
    """

    scorer: str = "gleaner.actors.reward.worker:task"
    config: Mapping[str, object] | None = None
    memory_bytes: int = 2 * 2**30
    start_s: float = 60.0


class WorkerHung(TimeoutError):
    """No reply by the deadline."""


class WorkerDied(RuntimeError):
    """The process ended, or sent invalid bytes; the text describes it."""


class ScorerUnusable(RuntimeError):
    """The scorer could not be loaded; the text gives the reason."""


class ScoringWorker(Protocol):
    """One process that loaded its scorer. Its starter must kill it."""

    @property
    def dead(self) -> bool:
        """Whether the process ended by itself."""

    async def ask(self, frame: bytes, deadline_s: float) -> pipe.Answer:
        """The answer to one packed item. Raises `WorkerHung` or `WorkerDied`: then kill the worker."""

    async def kill(self) -> None:
        """End the process and what it forked, and reap it. A second call does nothing."""


StartWorker = Callable[[WorkerSpec], Awaitable[ScoringWorker]]
"""Starts a worker and waits until it loaded its scorer. Raises `ScorerUnusable`, `WorkerDied` or
`WorkerHung`."""
