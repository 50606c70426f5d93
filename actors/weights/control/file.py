"""Control page files in shared memory, one per instance (`ControlFile`).

The files are stored beside the images of the host. This module owns the writing of a page, so that no reader
sees half of it, and the reading. The contents are defined in `page`. Adapter: files, memory.

One writer at a time holds a lock of the open file (`F_OFD_SETLK`). The kernel releases the lock when the
process ends, however it ends. So a reader can distinguish a page whose writer died in the middle from one
that is being written. The next writer repairs it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import struct
import time
from dataclasses import replace
from pathlib import Path

from gleaner.actors.weights.control.page import (
    PAGE_BYTES,
    SEQ_WORD,
    SUFFIX,
    WORDS,
    BadPage,
    Page,
    TornPage,
    decode,
    encode,
    next_seq,
    words_of,
)

READ_TRIES, LOOK_S = 100, 0.001  # a page is written in less than a millisecond, and seldom
_LOCK = "hhqqi4x"  # struct flock, 64 bits: type, whence, start, length, pid
_Words = ctypes.c_uint64 * WORDS

log = logging.getLogger("nodeagent.engine")


class PageInUse(OSError):
    """Another process, or another life of the instance, writes the page."""


class PageWriter:
    """The one writer of a page. Raises `PageInUse`, OSError: no space, no such folder."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._fd, path)
            os.posix_fallocate(self._fd, 0, PAGE_BYTES)  # a hole that cannot be filled later is a SIGBUS
            self.left = _sound(os.pread(self._fd, PAGE_BYTES, 0))
            self._map = mmap.mmap(self._fd, PAGE_BYTES)
        except BaseException:
            os.close(self._fd)
            raise
        self._words = _Words.from_buffer(self._map)

    def write(self, page: Page) -> None:
        """Write a page. Readers see all of it, or all of the previous one."""
        seq = next_seq(self._words[SEQ_WORD])
        words = words_of(encode(page, seq))
        self._words[SEQ_WORD] = seq - 1 if seq else (1 << 64) - 1
        for at, word in enumerate(words):  # one aligned store of eight bytes each
            if at != SEQ_WORD:
                self._words[at] = word
        self._words[SEQ_WORD] = seq

    def close(self) -> None:
        """Stop writing. The last page stays."""
        if self._fd >= 0:
            del self._words
            self._map.close()
            os.close(self._fd)
            self._fd = -1


class ControlFile:
    """The `ControlPage` of an instance. A failed write is logged and retried with the next page.

    Args:
        store_dir: of the images of its host.
        instance: its name; the file is its last part with `.control` behind.
    """

    def __init__(self, store_dir: Path, instance: str) -> None:
        self.path = store_dir / f"{instance.rpartition('/')[2]}{SUFFIX}"
        self._writer: PageWriter | None = None
        self._closed = False

    def left(self) -> Page:
        """See `ControlPage`."""
        writer = self._opened()
        return Page() if writer is None else writer.left

    def tell(self, page: Page) -> None:
        """See `ControlPage`."""
        if (writer := self._opened()) is not None:
            writer.write(replace(page, pid=os.getpid()))

    async def closed(self) -> None:
        """See `ControlPage`."""
        self._closed = True
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _opened(self) -> PageWriter | None:
        if self._writer is None and not self._closed:
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._writer = PageWriter(self.path)
            except OSError as problem:
                log.warning("control page write failed: %s: %s", self.path, problem)
        return self._writer


def read_page(path: Path) -> Page:
    """Return a consistent page, from any process, also while it is being written.

    Raises:
        TornPage: its writer died in the middle, or never stops writing.
        BadPage: the file is no control page.
        OSError: it cannot be read.
    """
    fd = _to_read(path)
    try:
        for _ in range(READ_TRIES):
            if (page := _look(fd, path)) is not None:
                return page
            time.sleep(LOOK_S)
    finally:
        os.close(fd)
    raise TornPage(f"{path}: it changed during each of {READ_TRIES} reads; its writer hangs in the middle")


def has_writer(path: Path) -> bool:
    """Whether a live instance writes the page. Raises OSError."""
    fd = _to_read(path)
    try:
        return _is_locked(fd)
    finally:
        os.close(fd)


def _look(fd: int, path: Path) -> Page | None:
    """One read attempt; None while the page is being written. Raises as `read_page`."""
    before = os.pread(fd, 16, 0)
    data = os.pread(fd, PAGE_BYTES, 0)
    if os.pread(fd, 16, 0) != before:
        return None
    try:
        return decode(data)
    except BadPage as problem:
        if _is_locked(fd) or os.pread(fd, PAGE_BYTES, 0) != data:
            return None
        reason = f"{path}: {problem}"
        if isinstance(problem, TornPage):
            reason += ", and no process writes it: its writer died in the middle; the next one repairs it"
        raise type(problem)(reason) from None


def _to_read(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # never wait for a pipe's writer


def _sound(data: bytes) -> Page:
    try:
        return decode(data)
    except BadPage:
        return Page()


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_LOCK, fcntl.F_WRLCK, 0, 0, 0, 0))
    except OSError as problem:
        if problem.errno in (errno.EAGAIN, errno.EACCES):
            raise PageInUse(problem.errno, "another process writes it", str(path)) from None
        raise


def _is_locked(fd: int) -> bool:
    asked = struct.pack(_LOCK, fcntl.F_RDLCK, 0, 0, 0, 0)
    kind, *_ = struct.unpack(_LOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    return bool(kind != fcntl.F_UNLCK)
