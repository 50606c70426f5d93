"""Event loop on virtual time: its clock jumps to the next timer, without waiting.

Owns time and nothing else: tasks, futures, timeouts and their order are asyncio's own. Nothing outside of the
process can wake it, so code on it must not use sockets, threads and signals.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


class Stalled(RuntimeError):
    """Everything on the loop waits for something that no timer will bring."""


class _NoFiles(selectors.BaseSelector):
    """Replaces asyncio's wait for files: takes the wait as time that passes."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(
        self, fileobj: FileDescriptorLike, events: int, data: object = None
    ) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stalled("deadlock: every task waits, and no timer is set")
        self.now_s += max(timeout, 0.0)
        return []

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return {key.fileobj: key for key in self._keys.values()}


class VirtualLoop(asyncio.SelectorEventLoop):
    """`asyncio` on virtual time, which begins at 0 s. Raises `Stalled` out of `run_until_complete` when
    nothing could ever happen again."""

    def __init__(self) -> None:
        self._files = _NoFiles()
        super().__init__(self._files)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._files.now_s
