"""SimFiles and SimMemory: whole files of a simulated host, on disk or in memory.

Files on its disk survive the host, files in its memory do not. Owns paths and bytes. Every write is whole
(production writes beside, then renames), and takes no time here: the model of the writer waits.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable


class SimFiles:
    """Files by their path.

    Args:
        check_space: raises OSError where `bytes_more` cannot be taken.
    """

    def __init__(self, check_space: Callable[[int], None] | None = None) -> None:
        self._check_space = check_space
        self._files: dict[str, bytes] = {}
        self.size_bytes = 0
        """Size of all files together."""

    def write(self, path: str, content: bytes) -> None:
        """Replace the file's content by `content`. Raises OSError on a full disk; then the old content
        stays."""
        old = len(self._files.get(path, b""))
        self._take(len(content) - old)
        self._files[path] = bytes(content)

    def append(self, path: str, content: bytes) -> None:
        """Append to the file. Raises OSError on a full disk."""
        self._take(len(content))
        self._files[path] = self._files.get(path, b"") + bytes(content)

    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError."""
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(f"{path}: no such file on this simulated host") from None

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return path in self._files

    def delete(self, path: str) -> None:
        """Delete the file; no error if there is none."""
        self.size_bytes -= len(self._files.pop(path, b""))

    def under(self, folder: str) -> list[str]:
        """The paths below `folder`, by name."""
        prefix = folder.rstrip("/") + "/"
        return sorted(path for path in self._files if path.startswith(prefix))

    def corrupt(self, path: str, at: int = 0) -> None:
        """Flip a bit of byte `at`. Raises FileNotFoundError, IndexError."""
        content = bytearray(self.read(path))
        content[at] ^= 1
        self._files[path] = bytes(content)

    def forget(self) -> None:
        """All of them."""
        self._files.clear()
        self.size_bytes = 0

    def _take(self, bytes_more: int) -> None:
        if self._check_space is not None and bytes_more > 0:
            self._check_space(bytes_more)
        self.size_bytes += bytes_more


class SimMemory(SimFiles):
    """Files of a host in its shared memory: they survive its processes. The code that ends the host calls
    `forget`."""

    def __init__(self) -> None:
        super().__init__(self._require)
        self._most_bytes = math.inf

    @property
    def full(self) -> bool:
        """Whether another user has taken all free memory."""
        return self._most_bytes < math.inf

    def fill(self) -> None:
        """Another user takes all free memory: the files may not grow beyond their present size, until
        `make_room`."""
        self._most_bytes = self.size_bytes

    def make_room(self) -> None:
        """Memory is free again."""
        self._most_bytes = math.inf

    def _require(self, bytes_more: int) -> None:
        if self.size_bytes + bytes_more > self._most_bytes:
            raise OSError(errno.ENOSPC, "no space is left in this simulated host's shared memory")
