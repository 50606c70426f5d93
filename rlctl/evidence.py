"""Evidence of a stopped run: journals, checkpoints and settings, read from its folder.

Owns where things lie: which files and which database. What the streams tell is `rlctl.testimony`'s, the
verdict `rlctl.audit`'s; nothing is ever written. What cannot be read becomes an entry of `Evidence.missing`,
under the invariant that it was needed for.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from actors.cluster.checkpoint_store import CheckpointStore
from actors.cluster.messages import TrainedSample
from actors.cluster.saved_state import Damaged
from configs.schema import Config
from nodeagent.host import CLUSTER
from rlctl.audit import CheckpointSeen, Evidence
from rlctl.testimony import (
    CONTROLLER,
    LEDGER,
    MANAGER,
    NEEDED_FOR,
    REGISTRY,
    STATE,
    Testimony,
    evidence_of,
)
from supervisor import JournalError
from supervisor.journal_file import contents_of, read_streams
from supervisor.journal_places import view

__all__ = ["COMMIT_FILE", "CONTROLLER", "LEDGER", "MANAGER", "NEEDED_FOR", "REGISTRY", "STATE", "gather"]

COMMIT_FILE = "commit.msgpack"


class _Commit(msgspec.Struct, frozen=True):
    """What is needed of a checkpoint's commit."""

    samples: tuple[TrainedSample, ...]


def gather(
    run_dir: Path, config: Config, *, complete: bool, state_dirs: Sequence[Path] = (), database: str = ""
) -> Evidence:
    """Read a run's evidence.

    complete: whether the job said that it is done, so that every step is due. state_dirs: state directories
    of hosts that lie elsewhere than under `nodes/`. database: the URL of the head's journals, where they are
    in one.
    """
    nodes = sorted(path for path in (run_dir / "nodes").glob("*") if path.is_dir())
    told = _streams([*nodes, *state_dirs], run_dir, database)
    if complete and not (run_dir / "checkpoints").is_dir():
        told.missing.append(("I5", f"{run_dir / 'checkpoints'} does not exist"))
    checkpoints = list(_checkpoints(run_dir / "checkpoints"))
    return evidence_of(told, config, complete=complete, checkpoints=checkpoints)


def _streams(state_dirs: Sequence[Path], run_dir: Path, database: str) -> Testimony:
    told = Testimony()
    if database:
        try:
            _of_database(database, run_dir.name, told)
        except JournalError as problem:
            told.missing.append(("I2", str(problem)))
    for state_dir in state_dirs:
        of_host, of_job = state_dir / "journal", state_dir / "journal" / run_dir.name
        for journal in sorted([*of_host.glob("*.sqlite"), *of_job.glob("*.sqlite")]):
            try:
                for name, content in read_streams(journal, NEEDED_FOR).items():
                    told.add(name, content)
            except JournalError as problem:
                told.missing.append(("I2", str(problem)))
    told.miss(f"under {run_dir / 'nodes'}", "; hosts whose state is elsewhere are named with --state-dir")
    return told


def _of_database(url: str, run_id: str, told: Testimony) -> None:
    """The streams of the cluster and of this run; a space is named for its job and its process."""
    with view(url) as journal:
        for full in journal.names():
            space, _, name = full.rpartition(": ")
            if name in NEEDED_FOR and space.partition("/")[0] in (CLUSTER, run_id):
                told.add(name, contents_of(journal, [full])[full])


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
