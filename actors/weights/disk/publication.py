"""`DiskPublication`: schedules versions to be written to a shared file system.

Owns the queue of versions. The job waits for none of them. `writer` writes a version, behind the port
`DiskVersions`. A version whose predecessor is in the folder, and still here, is written as the difference to
it; else whole, so that any reader can begin with it. A version that cannot be written is skipped, and the
next one is whole.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.disk.codec import DiskDeltaError
from gleaner.actors.weights.image.manifest import Manifest
from gleaner.actors.weights.image.port import Images, NoSuchImage
from gleaner.supervisor import Context

MAX_DUE = 8  # versions that wait; beyond it the oldest is skipped, because its image has been evicted anyway
THREAD = "disk"  # a durable write takes as long as it takes: deltas for receivers do not wait for it


class VersionTaken(DiskDeltaError):
    """The folder has other weights under this version: those of another run."""


class DiskVersions(Protocol):
    """The versions of a run in a folder. Each call blocks, and raises DiskDeltaError or OSError."""

    def has(self, version: int, root: bytes) -> bool:
        """Whether it is there. Raises VersionTaken if other weights are there."""

    def newest_whole(self) -> int | None:
        """The newest version that needs no other one."""

    def write_whole(
        self, version: int, image: memoryview, tensors: Sequence[TensorSpec], root: bytes = b""
    ) -> int:
        """A version by itself; its bytes."""

    def write_delta(
        self,
        version: int,
        old: memoryview,
        new: memoryview,
        tensors: Sequence[TensorSpec],
        root: bytes = b"",
    ) -> int:
        """A version as its difference to the one before it; its bytes."""

    def forget_before(self, version: int) -> None:
        """Remove versions that are older."""


class DiskPublication:
    """Writes published versions to a folder, in order and in the background.

    Args:
        images: those of this host; a version that is written is held meanwhile.
        opened: opens the folder, at the first version; None if none is wanted.
        whole_every: so many versions from one whole to the next; 0: the first one alone.
    """

    def __init__(
        self, ctx: Context, images: Images, opened: Callable[[], DiskVersions | None], whole_every: int
    ) -> None:
        self._ctx, self._images, self._open, self._whole_every = ctx, images, opened, whole_every
        self._disk: DiskVersions | None = None
        self._due: deque[tuple[Manifest, Manifest | None]] = deque(maxlen=MAX_DUE)
        self._writing = self._stopped = False
        self._newest = "-"

    @property
    def state(self) -> str:
        """The newest version that was written, "-" before the first, or "stopped"."""
        return "stopped" if self._stopped and self._disk is not None else self._newest

    def publish(self, manifest: Manifest, before: Manifest | None) -> None:
        """Queue this version; `before`: the previous version, if it is here."""
        if self._stopped:
            return
        self._due.append((manifest, before))
        if not self._writing:
            self._writing = True
            self._ctx.background(self._write_due(), "versions to disk")

    async def _write_due(self) -> None:
        try:
            while self._due and not self._stopped:
                manifest, before = self._due.popleft()
                try:
                    await self._ctx.offload_to(THREAD, self._write, manifest, before)
                except VersionTaken as taken:
                    self._stop(str(taken))
                except (DiskDeltaError, NoSuchImage, OSError) as problem:
                    self._ctx.log.error("version %d is not on disk: %s", manifest.version, problem)
        finally:
            self._writing = False

    def _stop(self, reason: str) -> None:
        self._stopped = True
        self._due.clear()
        self._ctx.log.error("disk publishing stopped (weights.disk): %s", reason)

    def _write(self, manifest: Manifest, before: Manifest | None) -> None:
        """Write one version, on the thread."""
        if self._disk is None:
            self._disk = self._open()
        disk, version = self._disk, manifest.version
        if disk is None:
            self._stopped = True
            return
        if disk.has(version, manifest.root):
            return
        whole = disk.newest_whole()
        due = whole is None or (self._whole_every > 0 and version - whole >= self._whole_every)
        with self._images.open(version) as image:
            nbytes = None
            if not due and before is not None and disk.has(before.version, before.root):
                nbytes = self._write_delta(disk, manifest, before, image.view)
            if nbytes is not None:
                how = "what changed"
            else:
                how = "whole"
                nbytes = disk.write_whole(version, image.view, manifest.tensors, manifest.root)
                if self._whole_every and whole is not None:
                    disk.forget_before(whole)
        self._newest = str(version)
        self._ctx.log.info("version %d is on disk: %s, %d bytes", version, how, nbytes)

    def _write_delta(
        self, disk: DiskVersions, manifest: Manifest, before: Manifest, image: memoryview
    ) -> int | None:
        """The bytes of the version's delta; None if it must be written whole."""
        if before.tensors != manifest.tensors:
            return None
        try:
            with self._images.open(before.version) as old:
                return disk.write_delta(manifest.version, old.view, image, manifest.tensors, manifest.root)
        except NoSuchImage:  # evicted meanwhile
            return None
