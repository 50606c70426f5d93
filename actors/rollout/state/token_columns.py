"""TokenColumns: the tokens of all open requests, in pages of two shared pools.

Owns u32 tokens and f32 log-probs, `PAGE` of them per page, and which pages belong to which slot, oldest
first. The token log decides which request has a slot, and whether a token may be added at all. Pure.

A slot has a cursor, where its next token goes. `take` appends the rows of a frame: one gather of cursors, one
scatter of tokens, one of log-probs, and one more of cursors, whatever the number of rows. Pages are allocated
only for the few rows that fill one. There is no Python object per token, and none per page.

Bounds: 8 bytes per token, at most one started page and one ahead per slot, and pools that grow by an eighth.
Returned pages and slots are used again before a pool grows; a pool never shrinks. The number of tokens is
limited where work is accepted (`admission.MAX_OPEN_TOKENS`), never here: a collected token is kept.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

PAGE = 64  # tokens: half a page is lost per request, 256 bytes; a smaller one is filled more often
_SHIFT, _WITHIN = 6, 63
_PAGES_AT_FIRST = 64
_SLOTS_AT_FIRST = 64
_READ_AT_A_TIME = 1024  # slots: what is gathered for a snapshot beside the snapshot itself
FEW_ROWS = 32  # that are taken row by row: fewer than take as long as the calls of NumPy for any number
NO_SLOT = 0  # has no capacity: tickets that take no tokens map to it

Slots = NDArray[np.int64]
Tokens = NDArray[np.uint32]
Logprobs = NDArray[np.float32]
Mask = NDArray[np.bool_]


class TokenColumns:
    """See the module. A slot holds at most the `limit` that it started with. `append` adds its first token
    and the last that it may have, for which the caller has more to do than to store it; `take` adds those
    between."""

    def __init__(self) -> None:
        self._tokens: Tokens = np.zeros(0, np.uint32)
        self._logprobs: Logprobs = np.zeros(0, np.float32)
        self._before = np.zeros(0, np.int32)  # the page before this one in its slot; -1: it is the first
        self._free_pages = np.zeros(0, np.int32)  # a stack of `_free` page numbers
        self._free = 0
        self._cursor: Slots = np.zeros(0, np.int64)  # where the next token goes, in the pools
        self._origin: Slots = np.zeros(0, np.int64)  # the cursor less the number of tokens
        self._end: Slots = np.zeros(0, np.int64)  # where the last token would go: `take` stops there
        self._last = np.zeros(0, np.int32)  # the newest page; -1: none
        self._mark = np.zeros(0, np.int32)  # scratch: the newest row of each slot
        self._free_slots: list[int] = []
        self._slots = 1  # number of slots ever allocated, with NO_SLOT
        self._rows = np.arange(256, dtype=np.int32)
        self.changes = 0
        """How often a slot began or ended: while it is the same, each request has the slot that it had."""
        self._grow_slots(_SLOTS_AT_FIRST)

    # -- slots --

    def begin(self, limit: int) -> int:
        """A slot for at most `limit` tokens, 1 or more."""
        self.changes += 1
        if self._free_slots:
            slot = self._free_slots.pop()
        else:
            slot, self._slots = self._slots, self._slots + 1
            if slot >= len(self._cursor):
                self._grow_slots(slot + (slot >> 2))
        self._cursor[slot] = self._origin[slot] = 0
        self._end[slot] = limit - 1
        self._last[slot] = -1
        return slot

    def end(self, slot: int) -> None:
        """Free the slot and its pages."""
        self.changes += 1
        pages = self._pages_of(slot)
        self._free_pages[self._free : self._free + len(pages)] = pages
        self._free += len(pages)
        self._cursor[slot] = self._origin[slot] = self._end[slot] = 0
        self._last[slot] = -1
        self._free_slots.append(slot)

    def length(self, slot: int) -> int:
        """Tokens of the slot."""
        return self._cursor.item(slot) - self._origin.item(slot)

    def lengths(self, slots: Sequence[int] | Slots) -> Slots:
        """The same of each of these slots."""
        which = np.asarray(slots, np.int64)
        lengths: Slots = self._cursor[which] - self._origin[which]
        return lengths

    def held(self) -> int:
        """Tokens of all slots."""
        return int((self._cursor[: self._slots] - self._origin[: self._slots]).sum())

    @property
    def pages(self) -> tuple[int, int]:
        """Pages in use, and all pages."""
        return len(self._before) - self._free, len(self._before)

    def tokens(self, slot: int) -> bytes:
        """Tokens of the slot, u32, raw, little-endian."""
        return self._read(self._tokens, slot)

    def logprobs(self, slot: int) -> bytes:
        """Log-probs of the slot, f32, raw, little-endian."""
        return self._read(self._logprobs, slot)

    def since(self, slot: int, start: int) -> tuple[bytes, bytes]:
        """Tokens and log-probs from position `start` on."""
        skipped = start // PAGE
        pages = self._pages_of(slot)[skipped:]
        if not pages:
            return b"", b""
        have = slice(4 * (start - skipped * PAGE), 4 * (self.length(slot) - skipped * PAGE))
        columns = (self._tokens, self._logprobs)
        tokens, logprobs = (pool.reshape(-1, PAGE)[pages].tobytes()[have] for pool in columns)
        return tokens, logprobs

    def _read(self, pool: "Tokens | Logprobs", slot: int) -> bytes:
        pages = self._pages_of(slot)
        return pool.reshape(-1, PAGE)[pages].tobytes()[: 4 * self.length(slot)] if pages else b""

    def _pages_of(self, slot: int) -> list[int]:
        pages = []
        page = self._last.item(slot)
        while page >= 0:
            pages.append(page)
            page = self._before.item(page)
        pages.reverse()
        return pages

    def read(self, slots: Sequence[int]) -> Iterator[tuple[bytes, bytes]]:
        """Tokens and log-probs of each of these slots, as `tokens` and `logprobs` return them: for a whole
        snapshot, without a walk through the pages of each."""
        for begin in range(0, len(slots), _READ_AT_A_TIME):
            yield from self._read_some(np.array(slots[begin : begin + _READ_AT_A_TIME], np.int64))

    def _read_some(self, slots: Slots) -> Iterator[tuple[bytes, bytes]]:
        owner, page = np.arange(len(slots)), self._last[slots]
        owners, pages = [owner[:0]], [page[:0]]
        while len(page):  # the newest page of each, then the one before, and so on
            there = page >= 0
            owner, page = owner[there], page[there]
            owners.append(owner)
            pages.append(page)
            page = self._before[page]
        owner, page = np.concatenate(owners[::-1]), np.concatenate(pages[::-1])
        page = page[np.argsort(owner, kind="stable")]  # slot by slot, the oldest page first
        counts = np.bincount(owner, minlength=len(slots))
        starts = (np.cumsum(counts) - counts) * 4 * PAGE
        ends = starts + 4 * (self._cursor[slots] - self._origin[slots])
        tokens, logprobs = (pool.reshape(-1, PAGE)[page].tobytes() for pool in (self._tokens, self._logprobs))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            yield tokens[start:end], logprobs[start:end]

    def faults(self) -> list[str]:
        """Faults of the pages; none, unless there is a bug."""
        chain = self._last[1 : self._slots]
        chain = chain[chain >= 0]
        seen = [self._free_pages[: self._free]]
        while len(chain):
            seen.append(chain)
            chain = self._before[chain]
            chain = chain[chain >= 0]
        pages = np.sort(np.concatenate(seen))
        whole = np.array_equal(pages, np.arange(len(self._before)))
        cursor = self._cursor[1 : self._slots]
        within = (cursor >= self._origin[1 : self._slots]) & (cursor <= self._end[1 : self._slots] + 1)
        return [
            *([] if whole else ["a page of tokens is lost, or belongs to two slots"]),
            *(f"slot {slot} holds more than it may" for slot in np.flatnonzero(~within) + 1),
        ]

    # -- tokens --

    def append(self, slot: int, token: int, logprob: float) -> None:
        """Add one token; the slot must have free capacity."""
        if self._last[slot] < 0:
            self._turn(np.array([slot]))
        at = self._cursor.item(slot)
        self._tokens[at], self._logprobs[at] = token, logprob
        self._cursor[slot] = at + 1
        if not (at + 1) & _WITHIN and at < self._end.item(slot):
            self._turn(np.array([slot]))

    def fill(self, slot: int, tokens: bytes, logprobs: bytes) -> None:
        """Give an empty slot these tokens, u32 and f32, raw, of equal length."""
        count = len(tokens) // 4
        if not count:
            return
        limit = self._end.item(slot) + 1
        pages = self._allocate((count + PAGE - (count == limit)) >> _SHIFT)
        self._before[pages[0]] = -1
        self._before[pages[1:]] = pages[:-1]
        self._last[slot] = pages[-1]
        for pool, raw in ((self._tokens, tokens), (self._logprobs, logprobs)):
            values, table = np.frombuffer(raw, pool.dtype), pool.reshape(-1, PAGE)
            whole = count >> _SHIFT
            table[pages[:whole]] = values[: whole << _SHIFT].reshape(-1, PAGE)
            if count & _WITHIN:
                table[pages[whole], : count & _WITHIN] = values[whole << _SHIFT :]
        at = (int(pages[-1]) << _SHIFT) + count - ((len(pages) - 1) << _SHIFT)
        self._cursor[slot], self._origin[slot] = at, at - count
        self._end[slot] = at - count + limit - 1

    def take(self, slots: Slots, tokens: Tokens, logprobs: Logprobs, halt: Mask | None) -> Mask | None:
        """Append rows, in their order for each slot; all arrays have one length.

        Rows of `halt` are not taken, nor the last that a slot may have, nor any later row of the same slot.
        Returns which rows were taken; None if all were.
        """
        count = len(slots)
        if count <= FEW_ROWS:
            return self._take_few(slots, tokens, logprobs, halt)
        if count > len(self._rows):
            self._rows = np.arange(2 * count, dtype=np.int32)
        if halt is None and self._distinct(slots):
            at = self._cursor[slots]
            if not np.count_nonzero(at >= self._end[slots]):
                self._tokens[at] = tokens
                self._logprobs[at] = logprobs
                at += 1
                self._cursor[slots] = at
                filled = (at & _WITHIN) == 0
                if np.count_nonzero(filled):
                    self._turn(slots[filled])
                return None
        return self._take_runs(slots, tokens, logprobs, halt)

    def _take_few(self, slots: Slots, tokens: Tokens, logprobs: Logprobs, halt: Mask | None) -> Mask | None:
        """The same, row by row."""
        cursor, end = self._cursor, self._end
        taken, stopped = [True] * len(slots), set[int]()
        halts = taken if halt is None else halt.tolist()
        for row, slot in enumerate(slots.tolist()):
            at = cursor.item(slot)
            if (halt is not None and halts[row]) or slot in stopped or at >= end.item(slot):
                stopped.add(slot)
                taken[row] = False
                continue
            self._tokens[at] = tokens[row]
            self._logprobs[at] = logprobs[row]
            cursor[slot] = at + 1
            if not (at + 1) & _WITHIN:
                self._turn(slots[row : row + 1])
        return np.array(taken, np.bool_) if stopped else None

    def _distinct(self, slots: Slots) -> bool:
        rows = self._rows[: len(slots)]
        self._mark[slots] = rows
        return not np.count_nonzero(self._mark[slots] != rows)

    def _take_runs(self, slots: Slots, tokens: Tokens, logprobs: Logprobs, halt: Mask | None) -> Mask | None:
        """Take several rows of a slot, a run; of each run the rows before the first that halts are taken."""
        count = len(slots)
        # Numbers of 16 bits are sorted by radix, five times as fast.
        narrow = slots.astype(np.uint16) if self._slots <= 1 << 16 else slots
        order = np.argsort(narrow, kind="stable")
        sorted_slots = slots[order]
        first = np.ones(count, np.bool_)
        np.not_equal(sorted_slots[1:], sorted_slots[:-1], out=first[1:])
        starts = np.flatnonzero(first)
        run = np.cumsum(first) - 1
        rank = self._rows[:count] - starts[run]
        heads = sorted_slots[starts]
        stops = rank >= (self._end[heads] - self._cursor[heads])[run]
        if halt is not None:
            stops |= halt[order]
        if not np.count_nonzero(stops):
            counts = np.diff(starts, append=count)
            self._write(heads, counts, run, rank, tokens[order], logprobs[order])
            return None
        stopped = np.cumsum(stops)
        keep = stopped == (stopped[starts] - stops[starts])[run]
        order, first = order[keep], first[keep]
        taken = np.zeros(count, np.bool_)
        if len(order):
            run = np.cumsum(first) - 1
            heads = sorted_slots[keep][first]
            self._write(heads, np.bincount(run), run, rank[keep], tokens[order], logprobs[order])
            taken[order] = True
        return taken

    def _write(
        self,
        heads: Slots,
        counts: NDArray[np.int64],
        run: NDArray[np.int64],
        rank: NDArray[np.int64],
        tokens: Tokens,
        logprobs: Logprobs,
    ) -> None:
        """`counts[r]` tokens go to slot `heads[r]`; a row is the `rank`-th of its `run`. All slots have
        capacity."""
        if counts.max() > PAGE:  # no more than one page is turned at a time
            early = rank < PAGE
            self._write(
                heads, np.minimum(counts, PAGE), run[early], rank[early], tokens[early], logprobs[early]
            )
            long, late = counts > PAGE, ~early
            number = np.cumsum(long) - 1
            rest = (number[run[late]], rank[late] - PAGE, tokens[late], logprobs[late])
            self._write(heads[long], counts[long] - PAGE, *rest)
            return
        begin = self._cursor[heads]
        at = begin[run] + rank
        after = begin + counts
        turning = np.flatnonzero((begin & _WITHIN) + counts > _WITHIN)
        if len(turning):
            page_end = (begin | _WITHIN) + 1
            shift = np.zeros(len(heads), np.int64)
            self._cursor[heads[turning]] = page_end[turning]  # where `_turn` finds the slots that turn
            shift[turning] = self._turn(heads[turning]) - page_end[turning]
            at += np.where(at >= page_end[run], shift[run], 0)
            after += shift
        self._tokens[at] = tokens
        self._logprobs[at] = logprobs
        self._cursor[heads] = after

    def _turn(self, slots: Slots) -> NDArray[np.int64]:
        """Allocate a page for each of these distinct slots, whose pages are full; returns where the pages
        start."""
        pages = self._allocate(len(slots))
        self._before[pages] = self._last[slots]
        self._last[slots] = pages
        starts: NDArray[np.int64] = pages.astype(np.int64) << _SHIFT
        shift = starts - self._cursor[slots]
        self._origin[slots] += shift
        self._end[slots] += shift
        self._cursor[slots] = starts
        return starts

    def _allocate(self, count: int) -> NDArray[np.int32]:
        """Take `count` free pages; the caller uses them before the next call."""
        if count > self._free:
            self._grow_pages(count - self._free)
        self._free -= count
        return self._free_pages[self._free : self._free + count]

    # -- growing: in place, so that no second copy of the tokens is ever made --

    def _grow_pages(self, missing: int) -> None:
        old = len(self._before)
        pages = old + max(missing, old >> 3, _PAGES_AT_FIRST)
        for pool in (self._tokens, self._logprobs):
            pool.resize(pages * PAGE, refcheck=False)  # no code keeps a view of a pool
        self._before.resize(pages, refcheck=False)
        self._free_pages.resize(pages, refcheck=False)
        self._free_pages[self._free : self._free + pages - old] = np.arange(pages - 1, old - 1, -1)
        self._free += pages - old

    def _grow_slots(self, slots: int) -> None:
        for column in (self._cursor, self._origin, self._end, self._last, self._mark):
            column.resize(slots, refcheck=False)
