"""Evidence of a stopped run: journals, checkpoints and settings, read from its folder.

Owns which stream and which file tells what. Judges nothing (`rlctl.audit` does) and never writes. What
cannot be read becomes an entry of `Evidence.missing`, under the invariant that it was needed for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from actors.cluster.checkpoint_store import CheckpointStore
from actors.cluster.messages import StepTrained, TrainedSample
from actors.cluster.saved_state import Damaged
from actors.cluster.state_manager import Rewound
from actors.rollout.books import BatchWeights, ManagerSnapshot, ledger_of
from actors.rollout.messages import BatchLedger
from actors.rollout.state import RolloutState
from actors.training.controller import StepFinished
from configs.schema import Config
from nodeagent.host import CLUSTER
from rlctl.audit import CheckpointSeen, Evidence
from supervisor import JournalError
from supervisor.journal_file import StreamContent, contents_of, read_streams
from supervisor.journal_places import view
from supervisor.message import Message
from supervisor.registry import Fences, NameFenced

MANAGER = "rollout/manager"
LEDGER = "rollout/manager/ledger"
STATE = "training/state"
CONTROLLER = "training/controller"
REGISTRY = "registry"
NEEDED_FOR = {MANAGER: "I2", LEDGER: "I1", STATE: "I5", CONTROLLER: "I5", REGISTRY: "I4"}
COMMIT_FILE = "commit.msgpack"


class _Commit(msgspec.Struct, frozen=True):
    """What is needed of a checkpoint's commit."""

    samples: tuple[TrainedSample, ...]


@dataclass(slots=True)
class _Found:
    """Streams by name; a name that two journals hold gives two contents."""

    streams: dict[str, list[StreamContent]] = field(default_factory=dict)
    missing: list[tuple[str, str]] = field(default_factory=list)

    def messages(self, name: str) -> list[Message]:
        return [message for content in self.streams.get(name, []) for message in content.messages]


def gather(
    run_dir: Path, config: Config, *, complete: bool, state_dirs: Sequence[Path] = (), database: str = ""
) -> Evidence:
    """Read a run's evidence.

    complete: whether the job said that it is done, so that every step is due. state_dirs: state directories
    of hosts that lie elsewhere than under `nodes/`. database: the URL of the head's journals, where they are
    in one.
    """
    nodes = sorted(path for path in (run_dir / "nodes").glob("*") if path.is_dir())
    found = _streams([*nodes, *state_dirs], run_dir, database)
    state = _replayed(found.messages(MANAGER))
    ledgers = [message for message in found.messages(LEDGER) if isinstance(message, BatchLedger)]
    open_batches = [ledger_of(batch) for batch in state.log.batches.values()]
    trained = [message for message in found.messages(STATE) if isinstance(message, StepTrained | Rewound)]
    finished = [event.step for event in found.messages(CONTROLLER) if isinstance(event, StepFinished)]
    if complete and not (run_dir / "checkpoints").is_dir():
        found.missing.append(("I5", f"{run_dir / 'checkpoints'} does not exist"))
    return Evidence(
        steps=config.job.steps,
        requests_per_step=config.rollout.prompts * config.rollout.samples,
        complete=complete,
        ledgers=[*ledgers, *open_batches],
        trained=trained,
        finished=finished,
        counters=state.counters if MANAGER in found.streams else None,
        tokens_lost=state.tokens_lost,
        state_faults=state.check(),
        fences=_fences(found.messages(REGISTRY)),
        checkpoints=list(_checkpoints(run_dir / "checkpoints")),
        missing=found.missing,
    )


def _streams(state_dirs: Sequence[Path], run_dir: Path, database: str) -> _Found:
    found = _Found()
    if database:
        try:
            _of_database(database, run_dir.name, found)
        except JournalError as problem:
            found.missing.append(("I2", str(problem)))
    for state_dir in state_dirs:
        of_host, of_job = state_dir / "journal", state_dir / "journal" / run_dir.name
        for journal in sorted([*of_host.glob("*.sqlite"), *of_job.glob("*.sqlite")]):
            try:
                for name, content in read_streams(journal, NEEDED_FOR).items():
                    found.streams.setdefault(name, []).append(content)
            except JournalError as problem:
                found.missing.append(("I2", str(problem)))
    for name, invariant in NEEDED_FOR.items():
        contents = found.streams.get(name, [])
        if not contents:
            text = f"no journal under {run_dir / 'nodes'} holds the stream {name}; hosts whose state is "
            found.missing.append((invariant, text + "elsewhere are named with --state-dir"))
        elif len(contents) > 1 and name != LEDGER:
            found.missing.append((invariant, f"{len(contents)} journals hold the stream {name}"))
    return found


def _of_database(url: str, run_id: str, found: _Found) -> None:
    """The streams of the cluster and of this run; a space is named for its job and its process."""
    with view(url) as journal:
        for full in journal.names():
            space, _, name = full.rpartition(": ")
            if name in NEEDED_FOR and space.partition("/")[0] in (CLUSTER, run_id):
                content = contents_of(journal, [full])[full]
                found.streams.setdefault(name, []).append(content)


def _replayed(messages: Sequence[Message]) -> RolloutState:
    """The manager's state, as the manager itself would rebuild it."""
    state = RolloutState()
    for message in messages:
        if isinstance(message, ManagerSnapshot):
            state.apply(message.rollout)
        elif not isinstance(message, BatchWeights):
            state.apply(message)
    return state


def _fences(messages: Sequence[Message]) -> dict[str, list[int]]:
    held: dict[str, list[int]] = {}
    for message in messages:
        if isinstance(message, Fences):
            held = {name: [incarnation] for name, incarnation in message.highest.items()}
        elif isinstance(message, NameFenced):
            held.setdefault(message.name, []).append(message.incarnation)
    return held


def _checkpoints(directory: Path) -> Iterator[CheckpointSeen]:
    store = CheckpointStore(directory)
    for step in store.steps():
        name = store.path(step).name
        try:
            whole = store.load(step)
            commit = msgspec.msgpack.decode((whole.path / COMMIT_FILE).read_bytes(), type=_Commit)
        except (Damaged, OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
            yield CheckpointSeen(name=name, step=step, damage=str(problem))
        else:
            yield CheckpointSeen(name=name, step=whole.step, samples=commit.samples)
