"""Tap: messages that pass one process, decoded, filtered and bounded, for readers.

Owns the readers and their waiting records. A reader pulls; one that stops pulling is forgotten. Without
readers there is no tap (`ActorSystem.tap` is None); that is the only check on the path of messages.
"""

import asyncio
import fnmatch
import itertools
import json
import math
import re
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from gleaner.supervisor.errors import Refused
from gleaner.supervisor.message import Message

Direction = Literal["in", "out", "local"]
"""Direction relative to this process: `in` arrived from another one, `out` leaves for another one, `local`
stays. A message of the cluster is thus seen once, except that one between two processes is `out` of the first
and `in` of the other."""

MAX_READERS = 4
"""Concurrent readers of one process; each is a user. Another one is refused."""
MAX_WAITING = 1000
"""Records that wait for one reader; those that find it full are skipped and counted."""
MAX_RATE = 1000.0
"""Records a second for one reader at most; decoding one takes tens of microseconds of the loop."""
IDLE_S = 5.0
"""A reader that has not read for so long is dropped."""
MAX_TEXT = 200
"""Characters of one string within a record, and bytes of one byte string."""
MAX_ITEMS = 16
"""Entries shown of one list or table within a record."""
MAX_DEPTH = 4
MAX_VALUES = 200
"""Values shown of one record, at any depth."""
MAX_BODY = 4000
"""Characters of a record's body."""
_NAMES = 4096  # verdicts remembered of a filter; names beyond it are matched anew each time


class TapRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A message that passed. `t_s`: the process's loop time; `mode`: `tell`, `ask`, `reply` or `error`;
    `body`: its fields as JSON, long ones cut."""

    t_s: float
    direction: Direction
    mode: str
    source: str
    to: str
    kind: str
    body: str


class StartTap(Message, frozen=True):
    """Requests that a process keep passing messages for one reader, under the reader's own name of it.
    `actor`: a glob that sender or receiver must match; `kind`: a glob of the message's kind; `rate`: records
    a second."""

    reader: str
    actor: str = "*"
    kind: str = "*"
    directions: tuple[Direction, ...] = ("in", "local")
    rate: float = 100.0


class ReadTap(Message, frozen=True):
    """Requests the records since the last answer; at most `limit` of them."""

    reader: str
    limit: int = 200


class StopTap(Message, frozen=True):
    """The reader wants no more."""

    reader: str


class TapRecords(Message, frozen=True):
    """Answers the three above, from `process` of `node`. `skipped`: messages that matched and were not kept
    since the last answer, because the rate or the capacity was used up. `now_s`: the process's loop time."""

    records: list[TapRecord]
    skipped: int
    now_s: float
    node: str = ""
    process: str = ""


class TapReader:
    """One reader's filter, its rate and its waiting records. Pure but for the clock, which is an argument."""

    def __init__(self, wanted: StartTap, now: Callable[[], float]) -> None:
        self.skipped = 0
        self.read_s = now()
        self._now = now
        self._rate = min(max(wanted.rate, 1.0), MAX_RATE)
        self._credit = self._rate
        self._filled_s = self.read_s
        self._directions = frozenset(wanted.directions)
        self._actor = _pattern(wanted.actor)
        self._kind = _pattern(wanted.kind)
        self._names: dict[str, bool] = {}
        self._waiting: deque[TapRecord] = deque()

    def seen(self, direction: Direction, mode: str, source: str, to: str, message: Message) -> None:
        """Keep a message that passes, if it is wanted and there is free capacity."""
        kind = type(message).__name__
        if direction not in self._directions or not (self._kind is None or self._kind(kind)):
            return
        if self._actor is not None and not (self._named(to) or self._named(source)):
            return
        now = self._now()
        self._credit = min(self._credit + (now - self._filled_s) * self._rate, self._rate)
        self._filled_s = now
        if self._credit < 1.0 or len(self._waiting) >= MAX_WAITING:
            self.skipped += 1
            return
        self._credit -= 1.0
        self._waiting.append(
            TapRecord(
                t_s=now,
                direction=direction,
                mode=mode,
                source=source,
                to=to,
                kind=kind,
                body=body_of(message),
            )
        )

    def read(self, limit: int) -> TapRecords:
        """The waiting records, oldest first, and how many were skipped since the last time."""
        self.read_s = self._now()
        count = min(max(limit, 0), len(self._waiting))
        records = [self._waiting.popleft() for _ in range(count)]
        skipped, self.skipped = self.skipped, 0
        return TapRecords(records=records, skipped=skipped, now_s=self.read_s)

    def _named(self, name: str) -> bool:
        assert self._actor is not None
        verdict = self._names.get(name)
        if verdict is None:
            verdict = self._actor(name)
            if len(self._names) < _NAMES:
                self._names[name] = verdict
        return verdict


class Tap:
    """The readers of one process; the path of messages calls `seen`.

    Args:
        on_change: called with the tap when its first reader arrives, and with None when the last one left.
    """

    def __init__(self, on_change: Callable[["Tap | None"], None]) -> None:
        self._on_change = on_change
        self._readers: dict[str, TapReader] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def seen(self, direction: Direction, mode: str, source: str, to: str, message: Message) -> None:
        """A message passes: `mode` is `tell`, `ask`, `reply` or `error`."""
        for reader in self._readers.values():
            reader.seen(direction, mode, source, to, message)

    def start(self, wanted: StartTap) -> TapRecords:
        """One more reader, or another filter for one that reads. Raises Refused beyond `MAX_READERS`."""
        if wanted.reader not in self._readers and len(self._readers) >= MAX_READERS:
            raise Refused(f"{MAX_READERS} taps are open here already; close one, or wait {IDLE_S:.0f} s")
        loop = asyncio.get_running_loop()
        self._readers[wanted.reader] = reader = TapReader(wanted, loop.time)
        if self._sweep is None:
            self._on_change(self)
            self._sweep = loop.call_later(IDLE_S, self._forget_idle)
        return reader.read(0)

    def read(self, wanted: ReadTap) -> TapRecords:
        """The records for a reader. Raises Refused if it was dropped."""
        reader = self._readers.get(wanted.reader)
        if reader is None:
            raise Refused(f"there is no such tap: one that is not read for {IDLE_S:.0f} s is closed")
        return reader.read(wanted.limit)

    def stop(self, wanted: StopTap) -> TapRecords:
        """Forget a reader; a second time does nothing."""
        reader = self._readers.pop(wanted.reader, None)
        self._settle()
        return reader.read(MAX_WAITING) if reader is not None else TapRecords(records=[], skipped=0, now_s=0)

    def close(self) -> None:
        """Forget every reader."""
        self._readers.clear()
        self._settle()

    def _forget_idle(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for name in [name for name, reader in self._readers.items() if now - reader.read_s >= IDLE_S]:
            del self._readers[name]
        self._sweep = loop.call_later(IDLE_S / 5, self._forget_idle)
        self._settle()

    def _settle(self) -> None:
        if not self._readers and self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
            self._on_change(None)


def body_of(message: Message) -> str:
    """The fields as JSON, with long ones cut: the cost and the size do not depend on the message's."""
    shown = _Bounded().of(message, MAX_DEPTH)
    text = json.dumps(shown, ensure_ascii=False)
    return text if len(text) <= MAX_BODY else json.dumps({"…": f"{len(text)} characters"}, ensure_ascii=False)


class _Bounded:
    """Copies a value as JSON's types, as far as `MAX_VALUES`, `MAX_ITEMS`, `MAX_TEXT` and the depth allow."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def of(self, value: object, depth: int) -> object:
        self._left -= 1
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)  # JSON has no value for it
        if isinstance(value, str):
            return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}… ({len(value)} characters)"
        if isinstance(value, bytes | bytearray | memoryview):
            return (
                bytes(value).hex() if len(value) <= 8 else f"{bytes(value[:8]).hex()}… ({len(value)} bytes)"
            )
        if depth == 0 or self._left <= 0:
            return "…"
        if isinstance(value, msgspec.Struct):
            names = value.__struct_fields__[:MAX_ITEMS]
            return {name: self.of(getattr(value, name), depth - 1) for name in names}
        if isinstance(value, dict):
            return self._table(value, depth - 1)
        if isinstance(value, list | tuple):
            items = [self.of(item, depth - 1) for item in value[:MAX_ITEMS]]
            return [*items, f"… ({len(value)} items)"] if len(value) > MAX_ITEMS else items
        return str(value)[:MAX_TEXT] if not isinstance(value, set | frozenset) else f"{len(value)} items"

    def _table(self, table: dict[object, object], depth: int) -> dict[str, object]:
        shown: dict[str, object] = {}
        for key, entry in itertools.islice(table.items(), MAX_ITEMS):
            shown[str(key)[:MAX_TEXT]] = self.of(entry, depth)
        if len(table) > MAX_ITEMS:
            shown["…"] = f"{len(table)} entries"
        return shown


def _pattern(glob: str) -> Callable[[str], bool] | None:
    if glob == "*":
        return None
    match = re.compile(fnmatch.translate(glob)).match
    return lambda name: match(name) is not None
