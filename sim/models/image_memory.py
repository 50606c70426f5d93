"""Weight images in a simulated host's memory: `gleaner.actors.weights.image.port.Images`.

They are in a mapping. Owns the store's rules (which versions stay, what is visible when), as
`gleaner.actors.weights.image.store` has them on files. The mapping belongs to the host: images outlive the
process that made them, and are lost with the host.

Left out: the reuse of a draft that a killed writer left, headers, and the reuse of memory: bytes here are
never written twice.
"""

from collections import Counter, OrderedDict
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from types import TracebackType

import xxhash

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.image.port import ImageStoreFull, NoSuchImage, VersionConflict
from gleaner.sim.models.clock import Clock

KEEP = 3
_SUFFIX, _NOTE, _DRAFT = ".image", ".note", ".draft"
_SHARED = 16


class ImagePool:
    """Equal images of many hosts, kept once: a thousand instances hold the same few versions. Memory that a
    process never touched costs a fault for each of its pages, so none is taken for what is here already."""

    def __init__(self) -> None:
        self._images: OrderedDict[bytes, bytes] = OrderedDict()
        self._zeros = b""

    def shared(self, image: bytes | bytearray) -> bytes:
        """The same bytes, as an object that others have too."""
        digest = xxhash.xxh3_128_digest(image)
        known = self._images.pop(digest, None)
        if known is None or known != image:
            known = bytes(image)
        self._images[digest] = known
        while len(self._images) > _SHARED:
            self._images.popitem(last=False)
        return known

    def zeros(self, nbytes: int) -> bytes:
        """So many zero bytes: what the file system counts for a draft."""
        if len(self._zeros) != nbytes:
            self._zeros = bytes(nbytes)
        return self._zeros


class SimImage:
    """A sealed image that is in use."""

    def __init__(self, store: "SimImages", version: int, content: bytes) -> None:
        self.version = version
        self.view = memoryview(content)
        self._store, self._closed = store, False
        store.in_use[version] += 1

    def close(self) -> None:
        """Give the version free for eviction. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._store.in_use[self.version] -= 1

    def __enter__(self) -> "SimImage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SimDraft:
    """An image that is being written. Leaving the `with` block without `seal` drops it."""

    left = False
    path = Path()  # no other process sees this memory

    def __init__(self, store: "SimImages", version: int, nbytes: int) -> None:
        self.version = version
        self._store, self._bytes = store, bytearray(nbytes)
        self.view = memoryview(self._bytes)

    def seal(self) -> None:
        """Make it visible now. Raises `VersionConflict`."""
        self._store.put(self.version, self._store.pool.shared(self._bytes))

    def seal_after(self, clock: Clock) -> None:
        """Make it visible when the work of the moment is over; its bytes are taken now. Raises
        `VersionConflict` now."""
        content = self._store.pool.shared(self._bytes)
        self._store.refuse_other(self.version, content)
        clock.then(lambda: self._store.put(self.version, content))

    def abandon(self) -> None:
        """Drop the written bytes; no effect after `seal`."""
        self._store.give_back(self.version)

    def __enter__(self) -> "SimDraft":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()


class SimImages:
    """See the module. `keep`: how many versions there may be; the oldest unused one makes way."""

    def __init__(
        self,
        memory: MutableMapping[Path, bytes],
        directory: Path,
        pool: ImagePool | None = None,
        *,
        keep: int = KEEP,
    ) -> None:
        if keep < 2:
            raise ValueError(f"keep is {keep}; 2 are needed, one to serve while the next is written")
        self.directory, self.keep = directory, keep
        self.in_use: Counter[int] = Counter()
        self._memory = memory
        self.pool = pool or ImagePool()

    def versions(self) -> list[int]:
        """See `Images`."""
        mine = (path for path in self._memory if path.parent == self.directory and path.suffix == _SUFFIX)
        return sorted(int(path.stem[1:]) for path in mine)

    def place(self, version: int) -> str:
        """See `Images`."""
        return str(self._path(version))

    def open(self, version: int) -> SimImage:
        """See `Images`. Raises `NoSuchImage`."""
        return SimImage(self, version, self._content(version))

    def content(self, version: int) -> memoryview:
        """See `Images`. Raises `NoSuchImage`."""
        return memoryview(self._content(version))

    def create(self, version: int, nbytes: int, tensors: Sequence[TensorSpec] = ()) -> SimDraft:
        """See `Images`. Raises `ImageStoreFull`."""
        if nbytes < 1 or version < 0:
            raise ValueError(f"version {version} of {nbytes} bytes cannot be stored")
        self._make_way(version)
        self._write(self._path(version).with_suffix(_DRAFT), self.pool.zeros(nbytes))
        return SimDraft(self, version, nbytes)

    def give_back(self, version: int) -> None:
        """The memory that a draft took."""
        self._memory.pop(self._path(version).with_suffix(_DRAFT), None)

    def note(self, version: int, note: bytes, settings: bytes = b"") -> None:
        """See `Images`. Raises `ImageStoreFull`."""
        self._write(self._path(version).with_suffix(_NOTE), note)

    def noted(self, version: int) -> bytes | None:
        """See `Images`. Raises `NoSuchImage`."""
        self._content(version)
        return self._memory.get(self._path(version).with_suffix(_NOTE))

    def discard(self, version: int) -> None:
        """Remove a version; a process that has it open keeps the bytes until it closes it. Absent is fine."""
        self._memory.pop(self._path(version), None)
        self._memory.pop(self._path(version).with_suffix(_NOTE), None)

    def put(self, version: int, content: bytes) -> None:
        """A draft is finished. Raises `VersionConflict`."""
        self.refuse_other(version, content)
        self.give_back(version)
        self._memory[self._path(version)] = content

    def refuse_other(self, version: int, content: bytes) -> None:
        """Raises `VersionConflict` where other bytes lie under this version."""
        known = self._memory.get(self._path(version))
        if known is not None and known != content:
            raise VersionConflict(f"{self._path(version)} holds another version {version}; discard it first")

    def _write(self, path: Path, content: bytes) -> None:
        try:
            self._memory[path] = content
        except OSError as full:
            raise ImageStoreFull(f"{path}: {len(content)} bytes find no room: {full}") from full

    def _path(self, version: int) -> Path:
        return self.directory / f"v{version:09d}{_SUFFIX}"

    def _content(self, version: int) -> bytes:
        try:
            return self._memory[self._path(version)]
        except KeyError:
            raise NoSuchImage(f"{self.directory} holds versions {self.versions()}, not {version}") from None

    def _make_way(self, version: int) -> None:
        kept = [other for other in self.versions() if other != version]
        for old in list(kept):
            if len(kept) < self.keep:
                return
            if not self.in_use[old]:
                self.discard(old)
                kept.remove(old)
        if len(kept) >= self.keep:
            raise ImageStoreFull(f"{self.directory} keeps {self.keep} versions, {kept} are in use: close one")
