"""`JobProgress`: progress of a job, and the events that the controller journals.

Owns the events and their replay.
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


@dataclass(slots=True)
class JobProgress:
    """Progress of the job: the last step on record, the finished evaluations, the life of the head in which
    it began (None: in none yet), whether it is over, and the problems drawn."""

    draws: DrawOrder
    finished: int = 0
    evals: set[str] = field(default_factory=set)
    boot: int | None = None
    over: bool = False


async def standing_of(events: AsyncIterator[Message], draws: DrawOrder) -> JobProgress:
    """The replay of these events, in their order. draws: of a job that has not begun. Raises OtherDraws."""
    standing = JobProgress(draws)
    async for event in events:
        match event:
            case BeganIn():
                standing.boot = event.boot
            case StepFinished():
                standing.finished = event.step
                draws.finished(event.step)
            case Drawn() | Redrawn() | Returned() | RoundDrawn() | RoundRedrawn() | RoundSettled():
                draws.apply(event)
            case EvalDone():
                standing.evals.add(event.when)
            case JobOver():
                standing.over = True
            case _:
                pass
    return standing
