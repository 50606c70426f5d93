"""RunDir: the folder of a run with its name, files, lock and lookup.

Owns `runs/<id>/` as a place. One `rlctl` drives a run at a time: it holds a lock on the folder that the
kernel drops with the process, whatever ends it. The modules that write the files own their contents.
"""

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.rlctl.errors import failed, nothing, usage

if TYPE_CHECKING:  # lookups of a run need no settings, whose import is slow
    from gleaner.configs.schema import Config

_ID = re.compile(r".+-\d{8}-\d{6}-[0-9a-f]{4}")


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths of a run."""

    path: Path

    @property
    def id(self) -> str:
        """Its name: `NAME-YYYYmmdd-HHMMSS-xxxx`."""
        return self.path.name

    @property
    def config_file(self) -> Path:
        """The resolved settings."""
        return self.path / "config.toml"

    @property
    def history(self) -> Path:
        """The history, record by record."""
        return self.path / "history.jsonl"

    @property
    def model(self) -> Path:
        """The model that was made for it."""
        return self.path / "model"

    @property
    def checkpoints(self) -> Path:
        """Durable checkpoints."""
        return self.path / "checkpoints"

    @property
    def nodes(self) -> Path:
        """State directories of the hosts that run on this machine."""
        return self.path / "nodes"

    @property
    def head(self) -> Path:
        """State directory of the head."""
        return self.nodes / "head"

    def hosts(self) -> list[Path]:
        """State directories of the hosts that there were."""
        return sorted(path for path in self.nodes.glob("*") if path.is_dir())

    @property
    def lock_file(self) -> Path:
        """Locked by the process that drives the run."""
        return self.path / "lock"

    def config(self) -> "Config":
        """The settings. Raises CommandError."""
        from gleaner.configs.load import ConfigError, load

        try:
            return load(self.config_file)
        except ConfigError as problem:
            raise usage(*problem.problems) from problem

    def driven(self) -> bool:
        """Whether an `rlctl` drives this run now."""
        try:
            with self.lock_file.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Drive the run. Raises CommandError where another process does."""
        with self.lock_file.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise failed(
                    f"{self.path}: another rlctl drives this run (see `rlctl ps --run {self.id}`); wait for "
                    "its end, or stop it with Ctrl-C there"
                ) from None
            yield

    def memory(self) -> list[Path]:
        """Shared-memory folders of this run."""
        from gleaner.actors.cluster.job import SHARED_MEMORY

        return sorted(SHARED_MEMORY.glob(f"gleaner-{self.id}-*"))


def create(runs_dir: Path, config: "Config") -> RunDir:
    """A new folder with the resolved settings. Raises CommandError where it cannot be written."""
    from gleaner.configs.load import dump

    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = (runs_dir / f"{config.job.name}-{stamp}-{secrets.token_hex(2)}").resolve()
    try:
        path.mkdir(parents=True)
        (path / "config.toml").write_text(dump(config))
    except OSError as problem:
        raise failed(
            f"{path}: cannot be made: {problem.strerror}; give another folder with --runs-dir"
        ) from problem
    return RunDir(path)


def find(runs_dir: Path, name: str = "") -> RunDir:
    """The run of an id (or a unique prefix of one) or a path; "" is the newest. Raises CommandError."""
    if name and (os.sep in name or Path(name).is_dir()):
        path = Path(name).resolve()
        if not (path / "config.toml").is_file():
            raise nothing(f"{path}: no run: there is no config.toml in it")
        return RunDir(path)
    known = every(runs_dir)
    if not known:
        raise nothing(f"{runs_dir}: no runs; start one with `rlctl run quickstart`, or see --runs-dir")
    if not name:
        return known[-1]
    matching = [run for run in known if run.id == name] or [run for run in known if run.id.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise usage(f"{name}: {len(matching)} runs begin so: {', '.join(run.id for run in matching[-5:])}")
    newest = ", ".join(run.id for run in known[-3:])
    raise nothing(f"{name}: no such run in {runs_dir}; the newest are {newest}")


def find_driven(runs_dir: Path, name: str = "") -> RunDir:
    """A run that is being driven: the named one, or the newest such run. Raises CommandError."""
    if name:
        run = find(runs_dir, name)
        if not run.driven():
            raise nothing(f"{run.id} does not run; `rlctl resume {run.id}` continues it")
        return run
    running = [run for run in every(runs_dir) if run.driven()]
    if not running:
        raise nothing(f"nothing runs in {runs_dir}; name a run with --run, or a cluster with --head")
    return running[-1]


def every(runs_dir: Path) -> list[RunDir]:
    """All runs of a folder, the oldest first."""
    found = [
        path for path in runs_dir.glob("*") if _ID.fullmatch(path.name) and (path / "config.toml").is_file()
    ]
    return [RunDir(path.resolve()) for path in sorted(found, key=_began)]


def _began(path: Path) -> tuple[str, float]:
    _name, day, clock, _rest = path.name.rsplit("-", 3)
    return f"{day}-{clock}", path.stat().st_mtime
