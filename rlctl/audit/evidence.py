"""Evidence for an audit: all records that a stopped run left of its work.

Owns the shapes, and the helpers that both parts of the audit share. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gleaner.actors.cluster.state_manager import Rewound
from gleaner.actors.protocol.cluster import StepTrained, TrainedSample
from gleaner.actors.protocol.rollout import BatchLedger
from gleaner.actors.rollout.state.events import Counters
from gleaner.supervisor.message import Message

MAX_SHOWN = 3
"""Examples named in one violation; the count gives the rest."""


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """A checkpoint directory: the step in its metadata, the samples of that step, its faults."""

    name: str
    step: int
    samples: tuple[TrainedSample, ...] = ()
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All records of a stopped run.

    ledgers: every batch, released or still open, from its journal. trained: the StateManager's journal, in
    order. finished: steps that the controller recorded, in order. fences: the incarnations that held each
    registered name, in order. state_faults: broken invariants of the manager's own state.
    verdict_faults: verdicts in its journal that count for no request. rewards: the reward proxy's journal, in
    order. missing: (invariant, text) for unreadable evidence. damaged: (place, fault) for each fault of a
    journal that failed its verification, whatever it holds. staleness: the bound on the age of trained
    tokens, in versions.
    """

    steps: int
    requests_per_step: int
    complete: bool
    staleness: int = 0
    ledgers: Sequence[BatchLedger] = ()
    trained: Sequence[StepTrained | Rewound] = ()
    finished: Sequence[int] = ()
    counters: Counters | None = None
    tokens_lost: int = 0
    state_faults: Sequence[str] = ()
    verdict_faults: Sequence[str] = ()
    rewards: Sequence[Message] = ()
    fences: Mapping[str, Sequence[int]] = field(default_factory=dict)
    checkpoints: Sequence[CheckpointSeen] = ()
    missing: Sequence[tuple[str, str]] = ()
    damaged: Sequence[tuple[str, str]] = ()


def lineage(trained: Sequence[StepTrained | Rewound]) -> dict[int, StepTrained]:
    """The batch that made each version in the end."""
    line: dict[int, StepTrained] = {}
    for event in trained:
        if isinstance(event, Rewound):
            line = {step: kept for step, kept in line.items() if step <= event.step}
        else:
            line[event.step] = event
    return line


def some(faults: "Iterator[str] | Sequence[str]") -> Iterator[str]:
    """The first few, and how many more."""
    every = list(faults)
    yield from every[:MAX_SHOWN]
    if len(every) > MAX_SHOWN:
        yield f"and {len(every) - MAX_SHOWN} more of this kind"
