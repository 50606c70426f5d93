"""`ImageStore`: images of weight versions as files in shared memory.

Owns a directory (under /dev/shm). Each version has a folder that any engine loads as a checkpoint
(`model.safetensors`, `config.json`), with a note (its manifest). There is no other state. So the trainer that
writes, the agent that serves and the engine that reads may each open a store on the directory. The meaning of
the bytes is defined in `manifest` and `gleaner.actors.model.flat_image`; their transport is elsewhere.

A version is written in a folder of another name (`draft`). It becomes visible by rename when it is
sealed, so a visible image is whole. A reader holds a lease (`reader_locks`). An evicted version that has no
reader becomes the next draft, whose pages are already allocated.
"""

import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.image.draft import (
    DRAFT,
    FILE,
    Draft,
    close,
    drafts,
    is_dead,
    is_read,
    left_draft,
    new_draft,
)
from gleaner.actors.weights.image.port import ImageStoreFull, NoSuchImage
from gleaner.actors.weights.image.reader_locks import ImageLocked, exclusive, let_go, mapped
from gleaner.actors.weights.image.safetensors_file import NotSafetensors

_VERSION = re.compile(r"v(\d{9})")
_NOTE, _SETTINGS = "note", "config.json"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
LOOK_S = 0.02  # between two checks whether a reader has released its lease


class Image:
    """A sealed version, mapped read-only and leased; close it when done.

    Objects made from `view` stay valid after that, and each holds its own lease."""

    def __init__(self, version: int, path: Path) -> None:
        self.version, self.path = version, path
        self.view = mapped(path)

    def close(self) -> None:
        """Release the version. A second call does nothing."""
        with contextlib.suppress(ValueError):  # released before
            let_go(self.view)

    def __enter__(self) -> "Image":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ImageStore:
    """The `Images` of an agent, as files in shared memory.

    Args:
        keep: the most versions, including the one that is being written. The oldest one without readers is
            evicted.
        held: how many more while older ones are read, such as by an engine that lags.
    """

    def __init__(self, directory: str | Path, *, keep: int = 3, held: int = 1) -> None:
        if keep < 2:
            raise ValueError(f"keep is {keep}; 2 are needed, one to serve while the next is written")
        self.directory = Path(directory)
        self.keep, self.held = keep, held
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.cleaned = self._clean()

    def path(self, version: int) -> Path:
        """The path of a version's image once it is sealed."""
        return self._folder(version) / FILE

    def place(self, version: int) -> str:
        """See `Images.place`."""
        return str(self.path(version))

    def versions(self) -> list[int]:
        """Sealed versions, ascending."""
        found = (_VERSION.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def create(
        self, version: int, nbytes: int, tensors: Sequence[TensorSpec] = (), *, patience_s: float = 0.0
    ) -> Draft:
        """Allocate an image of `nbytes` bytes, to be written and sealed.

        Older versions without readers are evicted, and their memory is reused. A draft that a dead writer
        left for the same version and layout is taken over with its contents (`left`).

        Args:
            tensors: the tensors in the header; bytes of no tensor are declared as padding.
            patience_s: how long readers may take to let go of a version. Blocks meanwhile.

        Raises:
            ImageStoreFull: the file system is full, or the most versions are in use.
            NotSafetensors: no header can declare these tensors.
        """
        if nbytes < 1 or version < 0:
            raise ValueError(f"version {version} of {nbytes} bytes cannot be stored")
        if (found := left_draft(version, nbytes, tensors, self._folder(version))) is not None:
            try:
                self._make_way(version, patience_s, spare=0)
            except ImageStoreFull:
                found.abandon()
                raise
            return found
        used = self._make_way(version, patience_s, spare=1)
        try:
            self._require(nbytes, used)
            return new_draft(version, nbytes, tensors, self._folder(version), used)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise self._full(nbytes) from error
            raise

    def open(self, version: int) -> Image:
        """Map a sealed version read-only. Raises `NoSuchImage`."""
        try:
            return Image(version, self.path(version))
        except (FileNotFoundError, ImageLocked, NotSafetensors):
            raise self._absent(version) from None

    def content(self, version: int) -> memoryview:
        """The bytes of a sealed version, mapped; leased as long as any object made from them lives. Raises
        `NoSuchImage`."""
        return self.open(version).view

    def note(self, version: int, note: bytes, settings: bytes = b"") -> None:
        """Store a small note, such as the manifest, beside a sealed version; it replaces the previous note.

        settings: of the model, for readers that load the folder as a checkpoint. Raises `NoSuchImage`, and
        `ImageStoreFull`; the previous note then stays."""
        for name, content in ((_SETTINGS, settings), (_NOTE, note)):
            path = self._folder(version) / name
            draft = path.with_suffix(f".{os.getpid()}.tmp")
            try:
                if content:
                    draft.write_bytes(content)
                    draft.rename(path)
            except FileNotFoundError:
                raise self._absent(version) from None
            except OSError as error:
                draft.unlink(missing_ok=True)
                if error.errno in _NO_ROOM:
                    raise self._full(len(content)) from error
                raise

    def noted(self, version: int) -> bytes | None:
        """The note of a version, if any. Raises `NoSuchImage`."""
        if not self.path(version).exists():
            raise self._absent(version)
        try:
            return (self._folder(version) / _NOTE).read_bytes()
        except FileNotFoundError:
            return None

    def discard(self, version: int) -> None:
        """Remove a version. Processes that have it open keep the bytes until they close it. An absent version
        is fine.
        """
        folder = self._folder(version)
        gone = folder.with_name(f"{folder.name}.{os.getpid()}.{os.urandom(4).hex()}{DRAFT}")
        fd = exclusive(folder, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(FileNotFoundError):
            folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        close(fd)

    def _folder(self, version: int) -> Path:
        return self.directory / f"v{version:09d}"

    def _make_way(self, version: int, patience_s: float, spare: int) -> Path | None:
        """Evict until one more version fits.

        The oldest versions without readers go; `spare` of them are returned for reuse. All drafts of dead
        writers go too."""
        until_s = time.monotonic() + patience_s
        while True:
            idle = [draft for draft in drafts(self.directory) if is_dead(draft)]
            kept = [other for other in self.versions() if other != version]
            for old in list(kept):
                if len(kept) >= self.keep and not is_read(self._folder(old)):
                    idle.append(self._folder(old))
                    kept.remove(old)
            if len(kept) < self.keep + self.held:
                break
            if time.monotonic() >= until_s:
                raise ImageStoreFull(
                    f"{self.directory} keeps {self.keep} versions and {self.held} that are read, and all of "
                    f"{kept} are read: end the reader of the oldest one (fuser {self.path(kept[0])})"
                )
            time.sleep(LOOK_S)
        whole = [folder for folder in idle if (folder / FILE).exists()]
        used = max(whole, key=lambda folder: (folder / FILE).stat().st_size, default=None) if spare else None
        for folder in idle:
            if folder != used:
                shutil.rmtree(folder, ignore_errors=True)
        return used

    def _require(self, nbytes: int, used: Path | None) -> None:
        had = (used / FILE).stat().st_size if used is not None else 0
        if self._free() + had < nbytes:
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
        """Remove drafts whose writer is dead, except the newest: its version's writer may resume it
        (`create`)."""
        dead = [path for path in drafts(self.directory) if is_dead(path)][:-1]
        for path in dead:
            shutil.rmtree(path, ignore_errors=True)
        return [path.name for path in dead]
