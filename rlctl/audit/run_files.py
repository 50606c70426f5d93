"""Evidence of a stopped run: journals, checkpoints and settings from its folder.

Owns the locations: which files and which database. `gleaner.rlctl.audit.journal_evidence` interprets the
streams, and `gleaner.rlctl.audit.invariants` gives the verdict. Nothing is written. Every journal is verified
before it is used. An unreadable or damaged source becomes an entry of `Evidence.missing`, under the
invariants that needed it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from gleaner.actors.cluster.checkpoint_store import CheckpointStore
from gleaner.actors.cluster.saved_state import Damaged
from gleaner.actors.names import CONTROLLER, MANAGER, STATE
from gleaner.actors.protocol.cluster import TrainedSample
from gleaner.configs.schema import Config
from gleaner.nodeagent.host import CLUSTER
from gleaner.rlctl.audit import journal_faults
from gleaner.rlctl.audit.invariants import CheckpointSeen, Evidence
from gleaner.rlctl.audit.journal_evidence import (
    LEDGER,
    NEEDED_FOR,
    READ,
    REGISTRY,
    StreamEvidence,
    evidence_of,
)
from gleaner.supervisor import JournalError
from gleaner.supervisor.journal.file import JournalView, contents_of
from gleaner.supervisor.journal.store_choice import view

__all__ = ["COMMIT_FILE", "CONTROLLER", "LEDGER", "MANAGER", "NEEDED_FOR", "REGISTRY", "STATE", "gather"]

COMMIT_FILE = "commit.msgpack"


class _Commit(msgspec.Struct, frozen=True):
    """The fields of a checkpoint's commit that the audit needs."""

    samples: tuple[TrainedSample, ...]


def gather(
    run_dir: Path, config: Config, *, complete: bool, state_dirs: Sequence[Path] = (), database: str = ""
) -> Evidence:
    """Read a run's evidence.

    complete: whether the job reported that it is done, so that every step is due. state_dirs: state
    directories of hosts outside `nodes/`. database: the URL of the head's journals, where they are in one.
    """
    nodes = sorted(path for path in (run_dir / "nodes").glob("*") if path.is_dir())
    streams = _streams([*nodes, *state_dirs], run_dir, database)
    if complete and not (run_dir / "checkpoints").is_dir():
        streams.missing.append(("I5", f"{run_dir / 'checkpoints'} does not exist"))
    checkpoints = list(_checkpoints(run_dir / "checkpoints"))
    return evidence_of(streams, config, complete=complete, checkpoints=checkpoints)


def _streams(state_dirs: Sequence[Path], run_dir: Path, database: str) -> StreamEvidence:
    streams = StreamEvidence()
    if database:
        _read(database, lambda journal: _spaces_of(journal, run_dir.name), streams, only=run_dir.name)
    for state_dir in state_dirs:
        of_host, of_job = state_dir / "journal", state_dir / "journal" / run_dir.name
        for journal in sorted([*of_host.glob("*.sqlite"), *of_job.glob("*.sqlite")]):
            _read(journal, lambda journal: {name: name for name in journal.names()}, streams)
    streams.miss(f"under {run_dir / 'nodes'}", "; hosts whose state is elsewhere are named with --state-dir")
    return streams


def _read(
    place: str | Path,
    named: Callable[[JournalView], Mapping[str, str]],
    streams: StreamEvidence,
    only: str = "",
) -> None:
    """Verify a journal, then read its needed streams. named: the streams of this run by the names under which
    the journal keeps them. only: verify those whose name contains it."""
    found: Mapping[str, str] | None = None
    try:
        with view(place) as journal:
            faults = [str(fault["fault"]) for fault in journal_faults.faults(journal, only)]
            found = {full: name for full, name in named(journal).items() if name in READ}
            for full, name in found.items():
                streams.add(name, contents_of(journal, [full])[full])
    except JournalError as problem:
        faults = [str(problem)]
    streams.damaged += [(str(place), fault) for fault in faults]
    doubted = NEEDED_FOR if found is None else dict.fromkeys(found.values())
    for name in doubted if faults else ():
        streams.lack(name, f"{place} is not whole: {faults[0]}")


def _spaces_of(journal: JournalView, run_id: str) -> dict[str, str]:
    """The streams of the cluster and of this run; a space is named for its job and its process."""
    parts = {full: full.rpartition(": ") for full in journal.names()}
    return {
        full: name for full, (space, _, name) in parts.items() if space.partition("/")[0] in (CLUSTER, run_id)
    }


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
