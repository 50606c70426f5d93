"""Images of versions of the weights as files in shared memory.

Owns a directory (under /dev/shm): one file an image, and one for a note beside it (its manifest). There is no
other state, so the trainer that writes, the agent that serves and the engine that reads may each hold a
store on it. Does not own what the bytes mean (`manifest`, `actors.engine.weight_image`) nor how they
travel.

An image is written under a temporary name that is locked while its writer lives, and becomes visible by
rename when it is sealed; so a visible image is whole, and what a dead writer left is known by its free
lock.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import re
from collections import Counter
from pathlib import Path

from actors.weights.images import ImageStoreFull, NoSuchImage, VersionConflict

_IMAGE = re.compile(r"v(\d{9})\.image")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Image:
    """A sealed version, mapped read-only. `view` stays valid after an eviction; close it when done."""

    def __init__(self, store: "ImageStore", version: int, path: Path) -> None:
        self.version, self.path = version, path
        self._store = store
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.view = memoryview(self._map)
        self._closed = False
        store.in_use[version] += 1

    def close(self) -> None:
        """Give the version free for eviction. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._store.in_use[self.version] -= 1
            _unmap(self.view, self._map)

    def __enter__(self) -> "Image":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Draft:
    """An image being written. Leaving the `with` block without `seal` drops it."""

    def __init__(
        self, store: "ImageStore", version: int, path: Path, fd: int, nbytes: int, *, left: bool = False
    ) -> None:
        self.version, self.left = version, left
        self._store, self._path, self._fd = store, path, fd
        self._map = mmap.mmap(fd, nbytes)
        self.view = memoryview(self._map)

    @property
    def path(self) -> Path:
        """Where it is until it is sealed, zero where nothing was written: other processes may write too."""
        return self._path

    def seal(self) -> Path:
        """Make the image visible under its version. Its bytes must not change any more.

        Sealing a version again with equal bytes is harmless. Raises `VersionConflict` for other bytes.
        """
        final = self._store.path(self.version)
        if final.exists() and final.read_bytes() != self.view:
            raise VersionConflict(f"{final} holds another version {self.version}; discard it first")
        self._path.rename(final)
        self._close()
        return final

    def abandon(self) -> None:
        """Drop what was written. A second call does nothing, nor does one after `seal`."""
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            self._close()

    def _close(self) -> None:
        _unmap(self.view, self._map)
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> "Draft":
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()


class ImageStore:
    """See the module; the `Images` of an agent. `keep`: how many versions there may be; the oldest unused one
    makes way."""

    def __init__(self, directory: str | Path, *, keep: int = 3) -> None:
        if keep < 2:
            raise ValueError(f"keep is {keep}; 2 are needed, one to serve while the next is written")
        self.directory = Path(directory)
        self.keep = keep
        self.in_use: Counter[int] = Counter()  # open images of this process, by version
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.cleaned = self._clean()

    def path(self, version: int) -> Path:
        """Where the image of a version is once it is sealed."""
        return self.directory / f"v{version:09d}.image"

    def place(self, version: int) -> str:
        """See `Images.place`."""
        return str(self.path(version))

    def versions(self) -> list[int]:
        """Sealed versions, ascending."""
        found = (_IMAGE.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def create(self, version: int, nbytes: int) -> Draft:
        """Room for an image of `nbytes` bytes, to be written and sealed. Older unused versions make way. What
        a dead writer left of the same version and size is taken over, with what is in it (`left`).

        Raises:
            ImageStoreFull: nothing is left on the file system, or `keep` versions are open in this process.
        """
        if nbytes < 1 or version < 0:
            raise ValueError(f"version {version} of {nbytes} bytes cannot be stored")
        self._make_way(version)
        if (found := self._taken_over(version, nbytes)) is not None:
            return found
        path = self.directory / f"v{version:09d}.{os.getpid()}.{os.urandom(4).hex()}.draft"
        self._require(nbytes)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(fd, 0, nbytes)  # now, for a hole that cannot be filled later is a SIGBUS
            return Draft(self, version, path, fd, nbytes)
        except OSError as error:
            path.unlink(missing_ok=True)
            os.close(fd)
            if error.errno in _NO_ROOM:
                raise self._full(nbytes) from error
            raise

    def _taken_over(self, version: int, nbytes: int) -> Draft | None:
        """The draft of a dead writer, if one fits; those that do not go."""
        for path in sorted(self.directory.glob("*.draft")):
            fd = _locked(path)
            if fd is None:
                continue
            if path.name.startswith(f"v{version:09d}.") and os.fstat(fd).st_size == nbytes:
                return Draft(self, version, path, fd, nbytes, left=True)
            path.unlink(missing_ok=True)
            os.close(fd)
        return None

    def open(self, version: int) -> Image:
        """Map a sealed version read-only. Raises `NoSuchImage`."""
        try:
            return Image(self, version, self.path(version))
        except FileNotFoundError:
            raise self._absent(version) from None

    def content(self, version: int) -> memoryview:
        """The bytes of a sealed version, mapped; they stay valid after its eviction. Raises `NoSuchImage`."""
        try:
            with self.path(version).open("rb") as file:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except FileNotFoundError:
            raise self._absent(version) from None

    def note(self, version: int, note: bytes) -> None:
        """Keep something small beside a sealed version, such as its manifest; replaces what was noted. Raises
        `ImageStoreFull`; what was noted before stays then."""
        path = self._note_path(version)
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            draft.write_bytes(note)
        except OSError as error:
            draft.unlink(missing_ok=True)
            if error.errno in _NO_ROOM:
                raise self._full(len(note)) from error
            raise
        draft.rename(path)

    def noted(self, version: int) -> bytes | None:
        """What was noted of a version, if anything. Raises `NoSuchImage`."""
        if not self.path(version).exists():
            raise self._absent(version)
        try:
            return self._note_path(version).read_bytes()
        except FileNotFoundError:
            return None

    def discard(self, version: int) -> None:
        """Remove a version; who has it open keeps the bytes until they close it. Absent is fine."""
        self.path(version).unlink(missing_ok=True)
        self._note_path(version).unlink(missing_ok=True)

    def _note_path(self, version: int) -> Path:
        return self.path(version).with_suffix(".note")

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

    def _require(self, nbytes: int) -> None:
        if self._free() < nbytes:
            raise self._full(nbytes)

    def _free(self) -> int:
        stat = os.statvfs(self.directory)
        return stat.f_bavail * stat.f_frsize

    def _full(self, nbytes: int) -> ImageStoreFull:
        return ImageStoreFull(
            f"{self.directory}: what is to be written needs {nbytes} bytes, {self._free()} are free: enlarge "
            f"the file system (mount -o remount,size=...), or keep fewer versions than {self.keep}"
        )

    def _absent(self, version: int) -> NoSuchImage:
        return NoSuchImage(f"{self.directory} holds versions {self.versions()}, not {version}")

    def _clean(self) -> list[str]:
        """Remove notes without an image, and drafts whose writer is dead, but for the newest: whoever was
        writing it may go on (`create`)."""
        removed = []
        dead = [path for path in sorted(self.directory.glob("*.draft")) if _is_dead(path)]
        lone = [path for path in self.directory.glob("*.note") if not path.with_suffix(".image").exists()]
        for path in sorted([*dead[:-1], *lone]):
            path.unlink(missing_ok=True)
            removed.append(path.name)
        return removed


def _is_dead(draft: Path) -> bool:
    """Whether nobody writes it any more."""
    fd = _locked(draft)
    if fd is not None:
        os.close(fd)
    return fd is not None


def _locked(draft: Path) -> int | None:
    """A descriptor of it, which holds its lock; None where its writer lives, or it is gone."""
    try:
        fd = os.open(draft, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _unmap(view: memoryview, mapped: mmap.mmap) -> None:
    # Somebody may still read through an array made from the view; the mapping goes when they drop it.
    with contextlib.suppress(BufferError):
        view.release()
        mapped.close()
