"""Evidence from message streams, independent of where journals are stored.

Owns which stream holds which evidence of a run. Reads nothing (`gleaner.rlctl.audit.run_files` reads files
and databases, a simulated run passes its disks) and judges nothing (`gleaner.rlctl.audit.invariants` does). A
missing stream becomes an entry of `Evidence.missing`, under the invariants that needed it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gleaner.actors.cluster.state_manager import Rewound
from gleaner.actors.names import CONTROLLER, MANAGER, REWARD, STATE
from gleaner.actors.protocol.cluster import StepTrained
from gleaner.actors.protocol.rollout import BatchLedger
from gleaner.actors.rollout.journal.journaled_state import BatchWeights, ManagerSnapshot, ledger_of
from gleaner.actors.rollout.state.events import Scored
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.training.job_journal import JobSnapshot, StepFinished
from gleaner.configs.schema import Config
from gleaner.rlctl.audit.invariants import CheckpointSeen, Evidence
from gleaner.supervisor.journal.file import StreamContent
from gleaner.supervisor.message import Message
from gleaner.supervisor.names.registry import Fences, NameFenced

LEDGER = "rollout/manager/ledger"
REGISTRY = "registry"
NEEDED_FOR = {
    MANAGER: ("I1", "I2", "I3", "I4", "I7"),
    LEDGER: ("I1", "I2", "I3", "I4", "I7"),
    STATE: ("I1", "I5"),
    CONTROLLER: ("I5",),
    REGISTRY: ("I4",),
}
"""The streams that each run has, each with the invariants that cannot be checked without it."""
READ = {**NEEDED_FOR, REWARD: ("I7",)}
"""All streams that are read. That of the reward proxy is empty where no verdict took long, and in runs of
older programs it is not there."""
UNCOUNTED = ("scored_twice", "scored_unfinished", "unknown_request")
"""Reasons for which the manager's state refuses a verdict that it should not have journaled."""


@dataclass(slots=True)
class StreamEvidence:
    """Streams by name; a name that is in two journals has two contents. missing: (invariant, text) for
    unreadable evidence. damaged: (place, fault) of journals that are not whole."""

    streams: dict[str, list[StreamContent]] = field(default_factory=dict)
    missing: list[tuple[str, str]] = field(default_factory=list)
    damaged: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, content: StreamContent) -> None:
        """One journal's contents of a stream."""
        self.streams.setdefault(name, []).append(content)

    def messages(self, name: str) -> list[Message]:
        """Messages of all journals that hold the stream."""
        return [message for content in self.streams.get(name, []) for message in content.messages]

    def miss(self, where: str, advice: str = "") -> None:
        """Note each stream that is in no journal, or in more than one."""
        for name in NEEDED_FOR:
            contents = self.streams.get(name, [])
            if not contents:
                self.lack(name, f"no journal {where} holds the stream {name}{advice}")
            elif len(contents) > 1 and name != LEDGER:
                self.lack(name, f"{len(contents)} journals hold the stream {name}")

    def lack(self, name: str, text: str) -> None:
        """A stream that cannot be relied on, and the reason."""
        self.missing += [(invariant, text) for invariant in READ[name]]


def evidence_of(
    streams: StreamEvidence, config: Config, *, complete: bool, checkpoints: Sequence[CheckpointSeen]
) -> Evidence:
    """The evidence in `told` and the checkpoints.

    complete: whether the job reported that it is done, so that every step is due.
    """
    state, verdict_faults = _replayed(streams.messages(MANAGER))
    ledgers = [message for message in streams.messages(LEDGER) if isinstance(message, BatchLedger)]
    open_batches = [ledger_of(batch) for batch in state.log.batches.values()]
    trained = [message for message in streams.messages(STATE) if isinstance(message, StepTrained | Rewound)]
    return Evidence(
        steps=config.job.steps,
        requests_per_step=config.rollout.prompts * config.rollout.samples,
        complete=complete,
        staleness=config.rollout.staleness,
        ledgers=[*ledgers, *open_batches],
        trained=trained,
        finished=_recorded(streams.messages(CONTROLLER)),
        counters=state.counters if MANAGER in streams.streams else None,
        tokens_lost=state.tokens_lost,
        state_faults=state.check(),
        verdict_faults=verdict_faults,
        rewards=streams.messages(REWARD),
        fences=_fences(streams.messages(REGISTRY)),
        checkpoints=checkpoints,
        missing=streams.missing,
        damaged=streams.damaged,
    )


def _replayed(messages: Sequence[Message]) -> tuple[RolloutState, list[str]]:
    """The manager's state, rebuilt as the manager itself would; the verdicts that count for no request."""
    state = RolloutState()
    faults: list[str] = []
    for message in messages:
        if isinstance(message, ManagerSnapshot):
            state.apply(message.rollout)
        elif not isinstance(message, BatchWeights):
            refused = state.apply(message).refused
            if isinstance(message, Scored):
                faults += [f"verdict of {message.request}: {why}" for why in refused if why in UNCOUNTED]
    return state, faults


def _recorded(messages: Sequence[Message]) -> list[int]:
    """The steps that the controller recorded, in order; a snapshot has those before it."""
    steps: list[int] = []
    for message in messages:
        if isinstance(message, JobSnapshot):
            steps += message.steps()
        elif isinstance(message, StepFinished):
            steps.append(message.step)
    return steps


def _fences(messages: Sequence[Message]) -> dict[str, list[int]]:
    held: dict[str, list[int]] = {}
    for message in messages:
        if isinstance(message, Fences):
            held = {name: [incarnation] for name, incarnation in message.highest.items()}
        elif isinstance(message, NameFenced):
            held.setdefault(message.name, []).append(message.incarnation)
    return held
