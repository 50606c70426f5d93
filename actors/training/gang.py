"""`Gang`: sockets between rank 0 and the other ranks of a trainer gang.

Rank 0 sends orders, and the others reply. Owns the rendezvous of the ranks and every wait for one of them.
All ranks live on one host. They connect to a Unix socket in a folder that only their user may enter; there
rank 0 sends the path of the file through which torch's ranks find each other. Each life of a gang has a file
of its own, so ranks of two lives never mix.

Nothing here waits without a deadline; a rank that ended is known at once, by its closed socket.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gleaner.actors.training.gang_orders import (
    PREFIX,
    BadFrame,
    Failed,
    Frame,
    Hello,
    Order,
    Report,
    Welcome,
    length,
    pack,
    unpack,
)

CONNECT_AGAIN_S = 0.05  # while rank 0 is not there yet
WORDS_S = 1.0  # for the last frame of a rank whose socket has closed
SOCKET = "orders"


class GangBroken(RuntimeError):
    """A rank is gone, silent or failed: none can go on, and all are started again."""


class RankSilent(GangBroken):
    """The rank did not reply in time."""


class RankFailed(GangBroken):
    """The rank reported a failure."""


class Gang:
    """Rank 0's side.

    Args:
        directory: where the ranks meet; made if it is not there.
        ranks: their number, with rank 0.
        deadline_s: to send one frame, and to get the reply to an order without work.
    """

    def __init__(self, directory: Path, ranks: int, deadline_s: float) -> None:
        self.ranks = ranks
        self.store = directory / f"ranks-{os.urandom(8).hex()}"
        self._directory = directory
        self._deadline_s = deadline_s
        self._others: dict[int, socket.socket] = {}

    def meet(self, within_s: float) -> None:
        """Wait until every other rank has joined. Raises GangBroken."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in self._directory.iterdir():  # of an earlier life
            old.unlink()
        until_s = time.monotonic() + within_s
        with _near(self._directory) as near, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(near / SOCKET))
            listener.listen(self.ranks)
            while len(self._others) < self.ranks - 1:
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not select.select([listener], [], [], left_s)[0]:
                    missing = sorted(set(range(1, self.ranks)) - self._others.keys())
                    raise GangBroken(f"ranks {missing} did not come within {within_s:g} s")
                self._admit(listener.accept()[0])
        for rank in sorted(self._others):
            self._send(rank, Welcome(self.ranks, str(self.store)))

    def tell(self, orders: Sequence[Order]) -> None:
        """Send one frame to each other rank, rank 1 first. Raises GangBroken."""
        for rank, order in zip(sorted(self._others), orders, strict=True):
            self._send(rank, order)

    def gather(self, extra_s: float = 0.0) -> list[Report]:
        """The reply of each other rank, rank 1's first. `extra_s`: time that the order may take beyond that
        of one frame. Raises GangBroken."""
        until_s = time.monotonic() + self._deadline_s + extra_s
        return [self._answer(rank, until_s) for rank in sorted(self._others)]

    def blame(self, problem: Exception) -> GangBroken:
        """Rank 0's own part failed. Find the other rank that is the cause: one that is gone, silent, or
        reported a failure."""
        until_s = time.monotonic() + WORDS_S
        silent, failed = [], []
        for rank in sorted(self._others):
            try:
                self._answer(rank, until_s)
            except RankSilent:
                silent.append(rank)
            except RankFailed as broken:
                failed.append(broken)
            except GangBroken as broken:
                return broken
        if silent:  # those that failed have waited for them too
            ranks = ", ".join(map(str, silent))
            return RankSilent(f"rank {ranks} did not answer: it is frozen or overloaded ({problem})")
        return failed[0] if failed else GangBroken(f"rank 0: {type(problem).__name__}: {problem}")

    def close(self) -> None:
        """Close the sockets; the other ranks see it at once."""
        for other in self._others.values():
            other.close()
        self._others.clear()

    def _admit(self, other: socket.socket) -> None:
        try:
            frame = _receive(other, time.monotonic() + self._deadline_s, "a rank")
        except GangBroken:  # it died while joining: its next life will join
            other.close()
            return
        if not isinstance(frame, Hello) or not 0 < frame.rank < self.ranks:
            other.close()
            raise GangBroken(f"{frame!r} is no rank of a gang of {self.ranks}")
        if frame.rank in self._others:  # the later one lives
            self._others[frame.rank].close()
        self._others[frame.rank] = other

    def _send(self, rank: int, frame: Order | Welcome) -> None:
        _send(self._others[rank], frame, self._deadline_s, f"rank {rank}")

    def _answer(self, rank: int, until_s: float) -> Report:
        frame = _receive(self._others[rank], until_s, f"rank {rank}")
        if isinstance(frame, Failed):
            raise RankFailed(f"rank {rank} failed: {frame.why}")
        if not isinstance(frame, Report):
            raise GangBroken(f"rank {rank} answered {type(frame).__name__}")
        return frame


class RankMembership:
    """The side of another rank.

    Args:
        directory: where the ranks meet.
        rank: from 1.
        deadline_s: for one frame.
    """

    def __init__(self, directory: Path, rank: int, deadline_s: float) -> None:
        self.rank = rank
        self._directory = directory
        self._deadline_s = deadline_s
        self._rank_0 = socket.socket(socket.AF_UNIX)
        self._greeted = False

    def join(self, within_s: float) -> Welcome | None:
        """Connect, and wait for the others; None if that takes longer, and can be retried. Raises
        GangBroken."""
        until_s = time.monotonic() + within_s
        while not self._greeted:
            try:
                with _near(self._directory) as near:
                    self._rank_0.connect(str(near / SOCKET))
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > until_s:
                    return None
                time.sleep(CONNECT_AGAIN_S)
            else:
                _send(self._rank_0, Hello(self.rank), self._deadline_s, "rank 0")
                self._greeted = True
        frame = self._next(until_s - time.monotonic())
        if frame is not None and not isinstance(frame, Welcome):
            raise GangBroken(f"rank 0 began with {type(frame).__name__}")
        return frame

    def next(self, within_s: float) -> Order | None:
        """The next order; None if none arrived within that time. Raises GangBroken."""
        frame = self._next(within_s)
        if isinstance(frame, Hello | Welcome | Report | Failed):
            raise GangBroken(f"rank 0 ordered {type(frame).__name__}")
        return frame

    def answer(self, frame: Report | Failed) -> None:
        """Reply to the current order. Raises GangBroken."""
        _send(self._rank_0, frame, self._deadline_s, "rank 0")

    def leave(self) -> None:
        """Close the socket: rank 0 sees it at once."""
        self._rank_0.close()

    def _next(self, within_s: float) -> Frame | None:
        if not select.select([self._rank_0], [], [], max(within_s, 0.0))[0]:
            return None
        return _receive(self._rank_0, time.monotonic() + self._deadline_s, "rank 0")


def _send(to: socket.socket, frame: Frame, deadline_s: float, peer: str) -> None:
    data = pack(frame)
    to.settimeout(deadline_s)
    try:
        to.sendall(data)
    except TimeoutError:
        raise RankSilent(f"{peer} takes no {type(frame).__name__}: it is frozen or overloaded") from None
    except OSError as problem:
        raise GangBroken(f"{peer} is gone: {problem}") from problem


def _receive(source: socket.socket, until_s: float, peer: str) -> Frame:
    try:
        size = length(_exactly(source, PREFIX.size, until_s, peer))
        return unpack(_exactly(source, size, until_s, peer))
    except BadFrame as problem:
        raise GangBroken(f"{peer}: {problem}") from problem


def _exactly(source: socket.socket, size: int, until_s: float, peer: str) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        source.settimeout(max(until_s - time.monotonic(), 0.001))
        try:
            got = source.recv_into(view)
        except TimeoutError:
            raise RankSilent(f"{peer} did not answer in time: it is frozen or overloaded") from None
        except OSError as problem:
            raise GangBroken(f"{peer} is gone: {problem}") from problem
        if not got:
            raise GangBroken(f"{peer} is gone")
        view = view[got:]
    return bytes(data)


@contextlib.contextmanager
def _near(directory: Path) -> Iterator[Path]:
    """A short name of the folder: the path of a Unix socket has 107 bytes at most."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
