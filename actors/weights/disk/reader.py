"""Reader of slime's and Stitch's versions on a shared file system.

Owns finding the chain of folders that leads to a version, and reading it into an image of ours. The chain is
the newest whole checkpoint, then each difference. Every changed tensor is verified against the publisher's
digest. Adapter: files, opened for reading alone. Every failure is an error that names the file; no image is
made then.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gleaner.actors.model.tensor_spec import TensorSpec, image_bytes
from gleaner.actors.weights.disk.codec import BadTensorDelta, DiskDeltaError, apply_tensor, digest
from gleaner.actors.weights.disk.layout import (
    HEADER_LENGTH,
    INDEX,
    MAX_HEADER_BYTES,
    POINTER,
    SINGLE,
    UPDATES,
    BadVersion,
    Header,
    Index,
    Terms,
    folder_of,
    image_layout,
    read_header,
    read_index,
    version_of,
)

MAX_INDEX_BYTES = 256 << 20
MAX_LINKS = 4096


class NoSuchVersion(DiskDeltaError):
    """The version is not there, or not whole yet."""


class WrongDigest(DiskDeltaError):
    """A tensor does not match the publisher's digest: another base, or damage."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The folders that lead to a version: a whole checkpoint, and the differences after it, in order."""

    whole: Path
    deltas: tuple[Path, ...]


def versions_folder(source: Path) -> Path:
    """The folder of the versions: `source` itself, or Stitch's folder in it."""
    return source / UPDATES if (source / UPDATES).is_dir() else source


def newest(source: Path) -> int | None:
    """The newest version of a folder: the one in Stitch's pointer, else the largest number that has an index.
    Raises BadVersion for a pointer that names none."""
    folder = versions_folder(source)
    pointer = folder.parent / POINTER
    if folder.name == UPDATES and pointer.is_file():
        text = pointer.read_text(errors="replace")
        version = version_of(text)
        if version is None:
            raise BadVersion(f"{pointer} has {text[:100]!r}, which names no version")
        return version
    found = [
        version
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (version := version_of(path.name)) is not None
        and path.name == folder_of(version)
        and ((path / INDEX).exists() or (path / SINGLE).exists())
    ]
    return max(found, default=None)


def chain_to(source: Path, version: int, base: Path | None = None, base_version: int = 0) -> Chain:
    """The folders that lead to a version: from the newest whole one, or from `base`, a checkpoint that is
    version `base_version`.

    Raises:
        NoSuchVersion: a folder is missing, or there is neither a whole version nor a base to begin with.
        BadVersion: an index is damaged, or a difference is against another version than the one before it.
    """
    folder = versions_folder(source)
    deltas: list[Path] = []
    for number in range(version, version - MAX_LINKS, -1):
        if base is not None and number == base_version:
            return Chain(base, tuple(reversed(deltas)))
        path = folder / folder_of(number)
        if number < 0 or not path.is_dir():
            raise NoSuchVersion(
                f"{path} does not exist, and version {version} needs it: give the checkpoint that the chain "
                "begins with as its base, or publish a whole version"
            )
        index = index_of(path)
        if index.version not in (None, number):
            raise BadVersion(f"{path}: its index is of version {index.version}")
        if index.terms is None:
            return Chain(path, tuple(reversed(deltas)))
        if index.terms.base_version != number - 1:
            raise BadVersion(f"{path} is against version {index.terms.base_version}, not {number - 1}")
        deltas.append(path)
    raise NoSuchVersion(f"version {version} is more than {MAX_LINKS} differences away from a whole one")


def index_of(folder: Path) -> Index:
    """The index of a version, or of any checkpoint. Raises NoSuchVersion, BadVersion."""
    path = folder / INDEX
    try:
        with path.open("rb") as file:
            data = file.read(MAX_INDEX_BYTES)
    except FileNotFoundError:
        if not (folder / SINGLE).exists():
            raise NoSuchVersion(
                f"{folder} has neither {INDEX} nor {SINGLE}: it is no checkpoint, or is still being written"
            ) from None
        header = header_of(folder / SINGLE)
        return Index(None, None, dict.fromkeys((spec.name for spec in header.tensors), SINGLE))
    try:
        return read_index(data)
    except BadVersion as problem:
        raise BadVersion(f"{folder}: {problem}") from problem


def header_of(path: Path) -> Header:
    """The header of a safetensors file. Raises NoSuchVersion if it is absent, BadVersion if it is torn."""
    try:
        with path.open("rb") as file:
            head = file.read(HEADER_LENGTH.size)
            length = HEADER_LENGTH.unpack(head)[0] if len(head) == HEADER_LENGTH.size else 0
            if not 0 < length <= MAX_HEADER_BYTES:
                raise BadVersion(f"{path} is no safetensors file: its header would have {length} bytes")
            text = file.read(length)
            if len(text) != length:
                raise BadVersion(f"{path} ends within its header: it is torn, or still being written")
            return read_header(text, os.fstat(file.fileno()).st_size)
    except FileNotFoundError:
        raise NoSuchVersion(f"{path} is missing, its index names it") from None
    except BadVersion as problem:
        raise problem if str(path) in str(problem) else BadVersion(f"{path}: {problem}") from problem


def layout_of(chain: Chain) -> tuple[TensorSpec, ...]:
    """The offsets of the chain's tensors in an image, in the order of the checkpoint's files. Raises as
    `header_of`."""
    return image_layout([spec for _, header in _files(chain.whole) for spec in header.tensors])


def fill(chain: Chain, image: memoryview, tensors: tuple[TensorSpec, ...]) -> None:
    """Build the version at the end of the chain in `image`, which holds zeros. `tensors`: `layout_of(chain)`.

    Raises:
        NoSuchVersion, BadVersion, BadTensorDelta: a file is missing, torn or contradicts itself.
        WrongDigest: a tensor does not match the publisher's digest.
    """
    if len(image) < image_bytes(tensors):
        raise ValueError(f"an image of {len(image)} bytes for {image_bytes(tensors)}")
    places = {spec.name: image[spec.offset : spec.offset + spec.nbytes] for spec in tensors}
    for path, header in _files(chain.whole):
        for spec in header.tensors:
            _read_into(path, spec, places[spec.name])
    for folder in chain.deltas:
        _apply(folder, places)


def read_image(chain: Chain, make: Callable[[int], memoryview]) -> tuple[TensorSpec, ...]:
    """The image that a chain leads to, in the zeroed memory that `make(nbytes)` gives, and its layout.
    Raises as `fill`."""
    tensors = layout_of(chain)
    fill(chain, make(image_bytes(tensors)), tensors)
    return tensors


def _files(folder: Path) -> Iterator[tuple[Path, Header]]:
    """The files of a version by name, each with those tensors that the index has in it."""
    files: dict[str, set[str]] = {}
    for name, file in index_of(folder).files.items():
        files.setdefault(file, set()).add(name)
    for file, names in sorted(files.items()):
        header = header_of(folder / file)
        found = tuple(spec for spec in header.tensors if spec.name in names)
        if len(found) != len(names):
            lost = min(names - {spec.name for spec in found})
            raise BadVersion(f"{folder / file} lacks {lost!r}, the index names it")
        yield folder / file, Header(found, header.metadata)


def _apply(folder: Path, places: dict[str, memoryview]) -> None:
    index = index_of(folder)
    assert index.terms is not None, "a chain is made of differences"
    for path, header in _files(folder):
        for spec in header.tensors:
            if spec.name not in places:
                raise BadVersion(f"{path}: {spec.name!r} is no tensor of the checkpoint that it changes")
            want = header.metadata.get(spec.name)
            if want is None:
                raise BadVersion(f"{path}: {spec.name!r} has no digest")
            _apply_one(path, spec, index.terms, want, places[spec.name])


def _apply_one(path: Path, spec: TensorSpec, terms: Terms, want: str, into: memoryview) -> None:
    payload = memoryview(bytearray(spec.nbytes))
    _read_into(path, spec, payload)
    try:
        apply_tensor(payload, into, terms.encoding)
    except BadTensorDelta as problem:
        raise BadTensorDelta(f"{path}: {spec.name!r}: {problem}; fetch the version again") from problem
    have = digest(terms.checksum, into)
    if have != want:
        raise WrongDigest(
            f"{path}: {spec.name!r} becomes {have} ({terms.checksum}), the publisher's digest is {want}: the "
            "base is not the version that it was made against, or the file is damaged"
        )


def _read_into(path: Path, spec: TensorSpec, into: memoryview) -> None:
    with path.open("rb", buffering=0) as file:
        file.seek(spec.offset)
        at = 0
        while at < len(into):
            got = file.readinto(into[at:])
            if not got:
                raise BadVersion(f"{path} ends at byte {spec.offset + at}, within {spec.name!r}")
            at += got
