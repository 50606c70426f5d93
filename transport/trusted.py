"""Changes of a key directory's `trusted/`: list, add, remove.

Owns the form of the files, so that a process that reads them at that moment sees the old list or the new one.
The user of `rlctl` decides which keys to trust.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gleaner.transport.keys import TRUSTED, BadKeys, fingerprint, read_key

SUFFIX = ".public"


class NameTaken(Exception):
    """Another key is trusted under that name."""


@dataclass(frozen=True, slots=True)
class Trusted:
    """One file of `trusted/`: its name, and its key or the problem with it."""

    name: str
    key: str
    problem: str = ""

    @property
    def fingerprint(self) -> str:
        """The key's short name, "" for a damaged file."""
        return fingerprint(self.key) if self.key else ""


def listed(root: Path) -> list[Trusted]:
    """Every file of `root`'s `trusted/`, the damaged ones too. Raises OSError."""
    found = []
    for path in sorted((root / TRUSTED).glob(f"*{SUFFIX}")):
        try:
            found.append(Trusted(path.stem, read_key(path)))
        except BadKeys as problem:
            found.append(Trusted(path.stem, "", str(problem)))
    return found


def trust(root: Path, name: str, key: str) -> bool:
    """Admit `key` as `name` to the node of key directory `root`; False when it is admitted so already. Raises
    `NameTaken`, OSError."""
    folder = root / TRUSTED
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}{SUFFIX}"
    with contextlib.suppress(BadKeys):  # missing, or damaged: to be written
        known = read_key(path)
        if known != key:
            raise NameTaken(
                f"{path} holds another key ({fingerprint(known)}): revoke it, or give another name"
            )
        return False
    partial = folder / f".{path.name}.{os.getpid()}"
    partial.unlink(missing_ok=True)
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)  # it is no secret
    with os.fdopen(fd, "w") as file:
        file.write(key + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    _flush(folder)
    return True


def revoke(root: Path, what: str) -> list[Trusted]:
    """Remove the key that has this name, key text or fingerprint, under every name that it has. Returns what
    was removed. Raises OSError."""
    everyone = listed(root)
    meant = [one for one in everyone if what in (one.name, one.key, one.fingerprint)]
    keys = {one.key for one in meant if one.key}
    removed = [one for one in everyone if one in meant or one.key in keys]
    for one in removed:
        (root / TRUSTED / f"{one.name}{SUFFIX}").unlink()
    if removed:
        _flush(root / TRUSTED)
    return removed


def key_directories(folder: Path) -> Iterator[Path]:
    """`folder` itself if it is a node's key directory, or those that lie in it (as `rlctl keygen` makes)."""
    if (folder / "node.public").exists():
        yield folder
    else:
        yield from sorted(path.parent for path in folder.glob("*/node.public"))


def _flush(folder: Path) -> None:
    """Make names durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
