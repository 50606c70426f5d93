"""`JobProgress`: progress of a job, and the events that the controller journals.

Owns the events, the snapshot that replaces them, and their replay. No snapshot replaces `JobOver`: a node
agent looks for that event, to find out which journals may be deleted.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from gleaner.actors.training.draw_events import (
    Drawn,
    DrawOrder,
    Redrawn,
    Returned,
    RoundDrawn,
    RoundRedrawn,
    RoundSettled,
)
from gleaner.actors.training.draw_snapshots import DrawSnapshot
from gleaner.supervisor import Message


class EvalDone(Message, frozen=True):
    """Journaled: a held-out evaluation is over: the "first", the "last", or that of a step ("step-8")."""

    when: str


class BeganIn(Message, frozen=True):
    """Journaled: the run began, or was resumed, in this life of the head."""

    boot: int


class JobOver(Message, frozen=True):
    """Journaled: every step is durable, both evaluations are done; the history gets no more records."""


class StepFinished(Message, frozen=True):
    """Journaled: this step is trained and in the history."""

    step: int


class JobSnapshot(Message, frozen=True):
    """Journaled in place of all events so far. recorded: the steps on record, as the first and the last of
    each run of consecutive ones: a second run is a step out of turn, which the audit must see. evals: the
    finished evaluations that matter yet. boot: the life of the head in which the job goes on. draws: which
    problems are drawn."""

    recorded: tuple[tuple[int, int], ...]
    evals: tuple[str, ...]
    boot: int | None
    draws: DrawSnapshot

    def steps(self) -> list[int]:
        """The steps on record, in the order of their records."""
        return [step for first, last in self.recorded for step in range(first, last + 1)]


@dataclass(slots=True)
class JobProgress:
    """Progress of the job.

    Attributes:
        draws: the problems drawn.
        recorded: see `JobSnapshot`.
        evals: finished evaluations that matter yet: the first, the last, and that of the last step on
            record.
        boot: the life of the head in which the job goes on; None: in none yet.
        over: whether the job is over.
        events: in the journal since its newest snapshot.
    """

    draws: DrawOrder
    recorded: list[tuple[int, int]] = field(default_factory=list)
    evals: set[str] = field(default_factory=set)
    boot: int | None = None
    over: bool = False
    events: int = 0

    @property
    def finished(self) -> int:
        """The last step on record."""
        return self.recorded[-1][1] if self.recorded else 0

    def apply(self, event: Message) -> None:
        """Change by one event of the journal, or by a snapshot before all others. Raises OtherDraws."""
        self.events += 1
        match event:
            case JobSnapshot():
                self._restore(event)
            case BeganIn():
                self.boot = event.boot
            case StepFinished():
                self._step_finished(event.step)
            case Drawn() | Redrawn() | Returned() | RoundDrawn() | RoundRedrawn() | RoundSettled():
                self.draws.apply(event)
            case EvalDone():
                self.evals.add(event.when)
            case JobOver():
                self.over = True
            case _:
                pass

    def snapshot(self) -> JobSnapshot:
        """The progress of a job that is not over, in place of all events so far."""
        return JobSnapshot(
            recorded=tuple(self.recorded),
            evals=tuple(sorted(self.evals)),
            boot=self.boot,
            draws=self.draws.snapshot(),
        )

    def _step_finished(self, step: int) -> None:
        if self.recorded and step == self.finished + 1:
            self.recorded[-1] = (self.recorded[-1][0], step)
        else:
            self.recorded.append((step, step))
        self.evals = {when for when in self.evals if not when.startswith("step-")}
        self.draws.finished(step)

    def _restore(self, snapshot: JobSnapshot) -> None:
        self.recorded, self.evals = list(snapshot.recorded), set(snapshot.evals)
        self.boot = snapshot.boot
        self.draws.restore(snapshot.draws)
        self.events = 0


async def standing_of(events: AsyncIterator[Message], draws: DrawOrder) -> JobProgress:
    """The replay of these events, in their order. draws: of a job that has not begun. Raises OtherDraws."""
    standing = JobProgress(draws)
    async for event in events:
        standing.apply(event)
    return standing
