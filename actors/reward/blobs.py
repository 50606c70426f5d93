"""`BlobFolder`: large results of stages on one host, by the digest of their bytes.

Owns the folder, its limit, and the check that a blob is what its name promises. A blob may be gone at any
time: at the limit the least recently used ones go, and the stage that made it is done again.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from gleaner.actors.reward.carried import digest_of

MOST_BYTES = 2**30
"""Of all blobs of a host."""
MOST_BLOB_BYTES = 64 * 2**20
"""Of one: of a host elsewhere no more is read."""
_DIGEST = re.compile(r"[0-9a-f]{32}")


class NoBlob(LookupError):
    """The blob is not here, or not what its name promises."""


class Blobs(Protocol):
    """The blobs of one host."""

    directory: Path

    def has(self, digest: str) -> bool:
        """Whether it is here; a use, where it is."""

    def put(self, content: bytes) -> str:
        """Keep these bytes; their digest."""

    def read(self, digest: str) -> bytes:
        """The bytes. Raises NoBlob."""

    def close(self) -> None:
        """Remove all."""


class BlobFolder:
    """A `Blobs` in a folder, which the processes of a host share. Each writes under a name of its own first.

    Args:
        directory: the folder, made where it is missing; None: a new one, that `close` removes.
        most_bytes: of all blobs.
    """

    def __init__(self, directory: str | Path | None = None, most_bytes: int = MOST_BYTES) -> None:
        self._own = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="gleaner-blobs-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._most_bytes = most_bytes

    def has(self, digest: str) -> bool:
        """See `Blobs`."""
        try:
            os.utime(self._path(digest))
        except (OSError, NoBlob):
            return False
        return True

    def put(self, content: bytes) -> str:
        """See `Blobs`. Raises OSError, as a full disk."""
        digest = digest_of(content)
        if not self.has(digest):
            self._trim(len(content))
            handle, name = tempfile.mkstemp(dir=self.directory, prefix="new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                os.replace(name, self._path(digest))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
        return digest

    def read(self, digest: str) -> bytes:
        """See `Blobs`."""
        try:
            content = self._path(digest).read_bytes()
        except OSError as problem:
            raise NoBlob(f"blob {digest} is not here: {problem}") from problem
        if digest_of(content) != digest:
            self._path(digest).unlink(missing_ok=True)
            raise NoBlob(f"blob {digest} is damaged")
        return content

    def close(self) -> None:
        """See `Blobs`: the folder itself, if it is its own."""
        if self._own:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _path(self, digest: str) -> Path:
        if _DIGEST.fullmatch(digest) is None:
            raise NoBlob(f"{digest!r:.80} is no digest")
        return self.directory / digest

    def _trim(self, coming: int) -> None:
        """Room for so many bytes: the least recently used blobs go."""
        kept = sorted(self._kept())
        total = sum(size for _, size, _ in kept) + coming
        for _, size, path in kept:
            if total <= self._most_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _kept(self) -> Iterator[tuple[float, int, Path]]:
        for path in self.directory.iterdir():
            with contextlib.suppress(OSError):  # another process removed it
                found = path.stat()
                yield found.st_mtime, found.st_size, path
