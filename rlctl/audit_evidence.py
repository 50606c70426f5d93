"""What an audit is given: all that a stopped run left behind of what it did.

Owns the shapes, and what both parts of the audit read from them. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from actors.cluster.messages import StepTrained, TrainedSample
from actors.cluster.state_manager import Rewound
from actors.rollout.events import Counters
from actors.rollout.messages import BatchLedger

MAX_SHOWN = 3
"""Examples named in one violation; the count tells the rest."""


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """A checkpoint directory: the step that it says it holds, the samples of that step, what is wrong."""

    name: str
    step: int
    samples: tuple[TrainedSample, ...] = ()
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a stopped run left behind.

    ledgers: every batch, released or still open, as its journal tells. trained: what the StateManager
    journaled, in order. finished: steps that the controller recorded, in order. fences: the incarnations that
    held each registered name, in order. state_faults: broken invariants of the manager's own state.
    missing: (invariant, text) for what could not be read. damaged: (place, fault) for each fault of a journal
    that failed its verification, whatever it holds. staleness: the bound on the age of trained tokens, in
    versions.
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
    fences: Mapping[str, Sequence[int]] = field(default_factory=dict)
    checkpoints: Sequence[CheckpointSeen] = ()
    missing: Sequence[tuple[str, str]] = ()
    damaged: Sequence[tuple[str, str]] = ()


def lineage(trained: Sequence[StepTrained | Rewound]) -> dict[int, StepTrained]:
    """What made each version in the end."""
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
