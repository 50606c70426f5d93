"""Effects: the effects of one event on the rollout state. Owns the shapes only."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EndedTicket:
    """A ticket that no longer counts: finished, aborted, taken back, or gone with its instance."""

    instance: str
    incarnation: int
    ticket: int
    request: str
    was_executing: bool


@dataclass(slots=True)
class Effects:
    """The effects of one event, for the actor to act upon."""

    # (instance, incarnation), one entry per request
    started: list[tuple[str, int]] = field(default_factory=list)
    began: list[str] = field(default_factory=list)  # the requests of `started`
    ended: list[EndedTicket] = field(default_factory=list)
    queued: list[str] = field(default_factory=list)  # requests that wait for an instance (again)
    finished: list[str] = field(default_factory=list)  # requests to be scored
    judged: list[str] = field(default_factory=list)  # requests that have their verdict
    completed: list[tuple[str, int]] = field(default_factory=list)  # (batch, group) finished and scored
    opened: list[str] = field(default_factory=list)  # batches
    released: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)  # requests that need no verdict any more
    refused: list[str] = field(default_factory=list)  # reasons

    def __bool__(self) -> bool:
        """Whether there is anything to act upon."""
        return bool(self.started or self.ended or self.queued or self.finished or self.completed)
