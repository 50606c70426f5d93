"""`DiskWriter`: writes versions for slime's engines and Stitch's replicas.

Owns writing a version to a shared file system, whole or as the difference to the previous one, and the
retention of older ones. A version appears by rename, complete and synced, or not at all; Stitch's pointer
moves after that. Adapter: files. `publication` decides when to write which version.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.disk.codec import digest, encode_tensor
from gleaner.actors.weights.disk.layout import (
    INDEX,
    POINTER,
    SINGLE,
    UPDATES,
    Index,
    Terms,
    folder_of,
    version_of,
    write_header,
    write_index,
)
from gleaner.actors.weights.disk.publication import VersionTaken
from gleaner.actors.weights.disk.reader import NoSuchVersion, index_of

SHARD_BYTES = 1 << 30
"""A file of differences is closed at this size: they are in memory until then."""
_COMPANIONS = frozenset({".json", ".txt", ".jinja", ".model"})
"""Suffixes of the files beside a checkpoint's weights: its settings and its tokenizer."""
_DRAFT = ".draft"


class DiskWriter:
    """Writes the versions of one run into a folder.

    Args:
        folder: of one run; created.
        encoding, checksum: how differences are written down.
        like: a checkpoint whose settings and tokenizer are copied beside whole versions; None for none.
        stitch_run: lay it out as Stitch does, with a pointer that names this run; "": as slime does.
    """

    def __init__(
        self, folder: Path, *, encoding: str, checksum: str, like: Path | None = None, stitch_run: str = ""
    ) -> None:
        self._terms = (encoding, checksum)
        self._like, self._stitch_run = like, stitch_run
        self._root = folder
        self._folder = folder / UPDATES if stitch_run else folder
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob(f".*{_DRAFT}"):  # left by a dead writer: a run has one writer
            shutil.rmtree(left, ignore_errors=True)

    def versions(self) -> list[int]:
        """The versions in the folder, ascending."""
        found = ((version_of(path.name), path.name) for path in self._folder.iterdir())
        return sorted(number for number, name in found if number is not None and name == folder_of(number))

    def newest_whole(self) -> int | None:
        """The newest version that needs no other one. Raises BadVersion."""
        for version in reversed(self.versions()):
            with contextlib.suppress(NoSuchVersion):  # an incomplete version is no starting point
                if index_of(self._folder / folder_of(version)).terms is None:
                    return version
        return None

    def has(self, version: int, root: bytes) -> bool:
        """Whether the version is there. Raises VersionTaken if other weights are there, ours or another
        writer's.
        """
        path = self._folder / folder_of(version)
        if not path.is_dir():
            return False
        if index_of(path).root != root.hex():
            raise VersionTaken(f"{path} holds other weights: give each run a folder of its own")
        return True

    def write_whole(
        self, version: int, image: memoryview, tensors: Sequence[TensorSpec], root: bytes = b""
    ) -> int:
        """A version as a checkpoint of its own; its bytes. Raises VersionTaken, DiskDeltaError, OSError."""
        with self._draft(version) as draft:
            _write_weights(draft, image, tensors, self._like)
            files = {spec.name: SINGLE for spec in tensors}
            _write(draft / INDEX, write_index(Index(version, None, files, root.hex())))
            nbytes = _bytes_in(draft)
        self._point(version)
        return nbytes

    def write_delta(
        self,
        version: int,
        old: memoryview,
        new: memoryview,
        tensors: Sequence[TensorSpec],
        root: bytes = b"",
    ) -> int:
        """A version as its difference to the one before it, whose image is `old`, laid out alike; its bytes.
        Raises as `write_whole`."""
        encoding, checksum = self._terms
        with self._draft(version) as draft:
            shards = _Shards(draft)
            for spec in tensors:
                part = slice(spec.offset, spec.offset + spec.nbytes)
                payload = encode_tensor(old[part], new[part], encoding)
                if payload is not None:
                    shards.add(spec.name, payload, digest(checksum, new[part]))
            terms = Terms(version - 1, encoding, checksum)
            _write(draft / INDEX, write_index(Index(version, terms, shards.close(), root.hex())))
            nbytes = _bytes_in(draft)
        self._point(version)
        return nbytes

    def forget_before(self, version: int) -> None:
        """Remove versions that are older."""
        for old in self.versions():
            if old < version:
                shutil.rmtree(self._folder / folder_of(old), ignore_errors=True)

    def _draft(self, version: int) -> contextlib.AbstractContextManager[Path]:
        path = self._folder / folder_of(version)
        if path.exists():
            raise VersionTaken(f"{path} exists: a published version is never written again")
        return _drafted(path)

    def _point(self, version: int) -> None:
        if self._stitch_run:
            draft = self._root / f".{POINTER}{_DRAFT}"
            _write(draft, f"{self._stitch_run}/{folder_of(version)}".encode())
            draft.rename(self._root / POINTER)


def write_checkpoint(
    folder: Path, image: memoryview, tensors: Sequence[TensorSpec], like: Path | None = None
) -> None:
    """An image as a Hugging Face checkpoint of one file, with the settings and the tokenizer of `like`. The
    folder must not exist; it appears whole. Raises DiskDeltaError, OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _drafted(folder) as draft:
        _write_weights(draft, image, tensors, like)


@contextlib.contextmanager
def _drafted(path: Path) -> Iterator[Path]:
    """A folder that becomes `path` if the block succeeds, and is removed otherwise."""
    draft = path.parent / f".{path.name}{_DRAFT}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        _sync(draft)
        draft.rename(path)
        _sync(path.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


class _Shards:
    """Files of differences, numbered in slime's way once their number is known."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done: list[list[str]] = []
        self._open: dict[str, bytes] = {}
        self._digests: dict[str, str] = {}

    def add(self, name: str, payload: bytes, becomes: str) -> None:
        """One tensor."""
        self._open[name], self._digests[name] = payload, becomes
        if sum(map(len, self._open.values())) >= SHARD_BYTES:
            self._flush()

    def close(self) -> dict[str, str]:
        """Write the rest; returns the file of each tensor."""
        self._flush()
        files = {}
        for number, names in enumerate(self._done):
            file = f"model-{number:05d}-of-{len(self._done):05d}.safetensors"
            (self._folder / f"shard-{number}").rename(self._folder / file)
            files.update(dict.fromkeys(names, file))
        return files

    def _flush(self) -> None:
        if self._open:
            specs = [
                TensorSpec(name, "uint8", (len(data),), 0, len(data)) for name, data in self._open.items()
            ]
            path = self._folder / f"shard-{len(self._done)}"
            _write(path, write_header(specs, self._digests), *self._open.values())
            self._done.append(list(self._open))
            self._open, self._digests = {}, {}


def _write_weights(folder: Path, image: memoryview, tensors: Sequence[TensorSpec], like: Path | None) -> None:
    if like is not None and like.is_dir():
        _copy_companions(like, folder, tensors[0].dtype if tensors else "")
    parts = (image[spec.offset : spec.offset + spec.nbytes] for spec in tensors)
    _write(folder / SINGLE, write_header(tensors, {"format": "pt"}), *parts)


def _copy_companions(like: Path, into: Path, dtype: str) -> None:
    """Copy settings and tokenizer. The settings name the dtype of the weights, or loaders would cast them."""
    for path in sorted(like.iterdir()):
        if path.suffix in _COMPANIONS and path.is_file() and path.name != INDEX:
            shutil.copyfile(path, into / path.name)
    config = into / "config.json"
    if config.exists():
        values = json.loads(config.read_bytes())
        values.pop("torch_dtype", None)  # the name before transformers 5
        config.write_text(json.dumps({**values, "dtype": dtype}, indent=2) + "\n")


def _write(path: Path, *parts: bytes | memoryview) -> None:
    with path.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
