"""Pipe: one direction of a simulated connection, what was sent and not read yet.

Owns order, the bound of waiting messages, and the loss when a connection ends: of messages under way, never
of arrived ones. Reads on the loop of the receiving process: a frozen process reads nothing, its kernel's
buffers fill up, and their content is handled when it goes on. Knows no socket.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gleaner.sim.network_path import End, Path, Station

T = TypeVar("T")

READ_BUDGET = 256  # messages delivered in one turn of the loop, so that others on it get theirs
COALESCE_S = 0.00005  # what arrives within this time is delivered together, as network cards do
AFTER_HEAL_S = 1.0  # TCP retries at growing pauses: a restored line is noticed up to so much later
RST_AFTER_S = 1.0  # a host that is back answers the next heartbeat of an old connection with a reset

Silence = tuple[float, float]
"""A receiver that receives nothing for so long (seconds, drawn between the two) gives the connection up."""


class Notes(Protocol):
    """Where the network notes what happens (`gleaner.sim.trace.Trace`)."""

    def note(self, what: str, *facts: str | int | float | bytes) -> None:
        """It happened now."""


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a connection: its number in the network, its path, its two ends."""

    number: int
    path: Path
    source: Station
    target: Station


class Pipe(Generic[T]):
    """See the module. `on_item` gets what arrives (nothing does before `read_into` gives one), `on_end` is
    called once, unless the receiver `shut` it before."""

    __slots__ = (
        "_due", "_is_bulk", "_last_s", "_now", "_on_item", "_over", "_path", "_process", "_queue", "_silence",
        "_source", "_timer", "bound", "counts", "number", "on_end", "on_free", "shut_off", "target", "trace",
    )  # fmt: skip

    def __init__(
        self,
        direction: Direction,
        *,
        bound: int,
        silence: Silence | None,
        trace: Notes | None,
        counts: Counter[str],
    ) -> None:
        self.number = direction.number
        self.bound = bound
        self.trace = trace
        self.counts = counts
        self.target = direction.target
        self.on_end: Callable[[End], None] = _ignore
        self.on_free: Callable[[], None] = _nothing  # the path was blocked, and is free again
        self.shut_off = False  # the receiver reads no more
        self._path = direction.path
        self._source = direction.source
        self._process = direction.target.process
        self._now = direction.target.process.time
        self._silence = silence
        self._queue: deque[tuple[float, int, T | End]] = deque()  # (arrives at, size, what); inf: held up
        self._on_item: Callable[[T], None] | None = None
        self._last_s = 0.0
        self._due = False  # a read is scheduled
        self._over = False  # the sender sends no more
        self._is_bulk = False
        self._timer: asyncio.TimerHandle | None = None
        direction.path.flows[self] = None

    @property
    def blocked(self) -> bool:
        """Whether nothing gets through now."""
        return self._path.blocked

    @property
    def waiting(self) -> int:
        """Messages sent and not read yet."""
        return len(self._queue)

    def held_up_by_others(self, within_s: float) -> bool:
        """Whether a message is on its way now that would take at most `within_s` if the path were its own."""
        if not self._queue:
            return False
        arrives_s, size_bytes, _ = self._queue[0]
        return self._now() < arrives_s < math.inf and size_bytes <= within_s * self._path.bulk_rate_bytes_s

    def read_into(self, on_item: Callable[[T], None]) -> None:
        """Deliver from now on."""
        self._on_item = on_item
        self._schedule()

    def send(self, item: T, size_bytes: int, mark: int = 0) -> bool:
        """Take a message; False when too many wait. `mark` represents its content in the trace."""
        queue = self._queue
        if len(queue) >= self.bound:
            self.counts["no credit"] += 1
            return False
        if self._over or self.shut_off:
            return True  # it will never arrive, and this end does not know that yet
        path = self._path
        if path.blocked:
            queue.append((math.inf, size_bytes, item))
            return True
        profile = path.profile
        if profile.vanish and path.rng.random() < profile.vanish:
            self.counts["vanished"] += 1
            return True
        now_s = self._now()
        self._put(now_s, path.message_s(now_s, size_bytes), size_bytes, item, mark)
        if profile.double and path.rng.random() < profile.double:
            self.counts["doubled"] += 1
            self._put(now_s, path.message_s(now_s, size_bytes), size_bytes, item, mark)
        return True

    def send_bulk(self, piece: T, size_bytes: float, mark: int = 0) -> None:
        """Take a piece of a bulk transfer, `size_bytes` long on the line; the sender keeps the bound. `mark`
        represents its content in the trace."""
        if self._over or self.shut_off:
            return
        if self._path.blocked:
            self._queue.append((math.inf, int(size_bytes), piece))
            return
        self._is_bulk = True
        now_s = self._process.time()
        self._put(now_s, self._path.bulk_s(now_s, size_bytes), int(size_bytes), piece, mark)

    def end(self, how: End) -> None:
        """The sender is done: the receiver is notified, unless the sender's whole host is gone."""
        if self._over:
            return
        if how is End.SILENT:
            how = End.RESET  # an end after silence leaves no more than that
        self._over = True
        if self.shut_off or not self._source.host.up:
            return
        now_s = self._process.time()
        if how is End.RESET:
            self._drop_later_than(now_s)
        if self._path.blocked:
            self._queue.append((math.inf, 0, how))
        else:
            self._put(now_s, self._path.message_s(now_s, 0), 0, how, 0)

    def shut(self) -> None:
        """The receiver reads no more, and `on_end` is not called."""
        self.shut_off = True
        self._on_item = None
        self._give_back(self._now())
        self._queue.clear()
        self._path.flows.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def watch(self) -> None:
        """See `Flow`."""
        if self._silence is None or self.shut_off:
            return
        reachable = not self._path.blocked and not self._source.frozen
        if reachable and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif not reachable and self._timer is None:
            delay_s = self._path.rng.uniform(*self._silence)
            self._timer = self._process.call_later(delay_s, self._silent)

    def hold_up(self) -> None:
        """See `Flow`."""
        now_s = self._process.time()
        self._queue = deque(
            entry if entry[0] <= now_s else (math.inf, entry[1], entry[2]) for entry in self._queue
        )
        self.watch()

    def go_on(self, blocked_s: float) -> None:
        """See `Flow`."""
        now_s = self._process.time()
        rng = self._path.rng
        if self._over and not self._source.alive and not self._ends():  # its host died and is back
            self._drop_later_than(now_s)
            self._queue.append((math.inf, 0, End.RESET))
            at_s = now_s + rng.uniform(0.0, RST_AFTER_S)
        else:
            at_s = now_s + rng.uniform(0.0, min(blocked_s, AFTER_HEAL_S))
        held, self._queue = self._queue, deque()
        for arrives_s, size_bytes, item in held:
            if arrives_s == math.inf:
                at_s = self._last_s = max(self._path.message_s(at_s, size_bytes), self._last_s)
                self._queue.append((at_s, size_bytes, item))
            else:
                self._queue.append((arrives_s, size_bytes, item))
        self._schedule()
        self.watch()
        self.on_free()

    def _ends(self) -> bool:
        return bool(self._queue) and isinstance(self._queue[-1][2], End)

    def _drop_later_than(self, now_s: float) -> None:
        self._give_back(now_s)
        arrived = deque(entry for entry in self._queue if entry[0] <= now_s)
        if len(arrived) < len(self._queue):
            self.counts["lost in flight"] += len(self._queue) - len(arrived)
            self._queue = arrived
        self._last_s = now_s

    def _give_back(self, now_s: float) -> None:
        """Free the line of the bulk that is still on its way: the sender sends the rest no more."""
        if not self._is_bulk:
            return
        rate_bytes_s = self._path.bulk_rate_bytes_s
        left = (min(size, (at_s - now_s) * rate_bytes_s) for at_s, size, _ in self._queue if at_s != math.inf)
        if (dropped := sum(size for size in left if size > 0)) > 0:
            self._path.drop_bulk(now_s, dropped)

    def _put(self, now_s: float, at_s: float, size_bytes: int, item: T | End, mark: int) -> None:
        last_s = self._last_s
        if at_s < last_s or (at_s < last_s + COALESCE_S and last_s > now_s):
            at_s = last_s
        else:
            self._last_s = at_s
        self._queue.append((at_s, size_bytes, item))
        if self.trace is not None:
            self.trace.note("net", self.number, at_s, size_bytes, mark)
        if not self._due and self._on_item is not None:
            self._due = True
            self._process.call_at(at_s, self._read)

    def _schedule(self) -> None:
        if self._queue and not self._due and self._on_item is not None and self._queue[0][0] != math.inf:
            self._due = True
            at_s = self._queue[0][0]
            if at_s > self._process.time():
                self._process.call_at(at_s, self._read)
            else:
                self._process.call_soon(self._read)

    def _read(self) -> None:
        self._due = False
        now_s = self._now()
        try:
            for _ in range(READ_BUDGET):
                if not self._queue or self._queue[0][0] > now_s or self._on_item is None:
                    return
                item = self._queue.popleft()[2]
                if isinstance(item, End):
                    self._ended(item)
                    return
                self._on_item(item)
        finally:
            if self._queue:
                self._schedule()  # also after an exception of the reader, which the loop reports

    def _silent(self) -> None:
        self._timer = None
        self.counts["silence"] += 1
        self._ended(End.SILENT)

    def _ended(self, how: End) -> None:
        self.shut()
        if self.trace is not None:
            self.trace.note("net end", self.number, how.value)
        self.on_end(how)


def _ignore(_how: End) -> None:
    return None


def _nothing() -> None:
    return None
