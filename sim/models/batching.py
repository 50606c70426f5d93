"""ContinuousBatch: continuous batching on a modelled engine.

It decides which requests execute or wait, what a turn yields, and how long the turn takes. Owns admission,
retraction and the rows of a frame. Pure: numpy and arithmetic, no clock, no messages.

- Requests wait in the order of arrival, and enter while a slot and space in the cache are free. Entering
  costs the prefill of the tokens that are not cached: samples of a group share their prompt while one of them
  executes.
- A turn decodes `frame_rows` rows for each request (fewer for one that ends), and is one frame. With
  `token_scale` s a row represents s tokens of the modelled model: lengths, cache and time count s times as
  much as what is sent.
- When the cache cannot take the rows of the next turn, requests are retracted, those with the shortest
  response first, as SGLang does: they wait again, in front, keep their tokens, and pay a prefill later.

What `frame_rows` and `token_scale` above 1 change, against one frame a decode step:
- tokens become visible at the end of a turn, up to `frame_rows * token_scale` decode steps later, and as many
  are lost with the instance if it dies in the turn; orders (aborts, new requests, weights) wait as long;
- slots and cache that become free within a turn stay unused until it ends;
- with `token_scale` s, lengths are whole multiples of s tokens.
The time of a turn is exact: steps are summed with the rows and the context of each of them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gleaner.actors.engine.worker.engine_port import StepOutput
from gleaner.actors.engine.worker.port import StepWork
from gleaner.sim.models.engine_cost import EngineCost
from gleaner.sim.models.step_rows import behind, rows_of, rows_of_equals
from gleaner.transport.token_frame import MAX_ROWS, Flag

_HELD = np.dtype(
    [
        ("ticket", np.uint32),
        ("key", np.uint64),
        ("prompt_id", np.uint64),
        ("prompt", np.int64),
        ("made", np.int64),
        ("end", np.int64),
        ("age", np.int64),
        ("fresh", np.bool_),
    ]
)
MAX_LEFT = 2**62  # rows; more than any request has


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one copy of the model. slots: requests decoded together. cache_tokens: of the modelled model.
    reserve_tokens: kept free for each running request when another enters."""

    slots: int
    cache_tokens: int
    reserve_tokens: int = 0
    frame_rows: int = 1
    token_scale: int = 1

    def __post_init__(self) -> None:
        if min(self.slots, self.cache_tokens, self.frame_rows, self.token_scale) < 1:
            raise ValueError(f"{self}: everything but the reserve must be at least 1")
        if self.slots > MAX_ROWS // 2:
            raise ValueError(f"{self.slots} slots are too many, at most {MAX_ROWS // 2} fit a token frame")


@dataclass(frozen=True, slots=True)
class Entry:
    """A request to decode; lengths in rows. `key` makes its tokens; of its `end` rows it has `made`."""

    ticket: int
    key: int
    prompt_id: int
    prompt: int
    made: int
    end: int


@dataclass(slots=True)
class BatchCounts:
    """Sums since the engine was made; tokens are of the modelled model."""

    turns: int = 0
    decode_steps: int = 0
    tokens_generated: int = 0
    tokens_prefilled: int = 0
    tokens_attended: float = 0.0  # in the caches of the rows decoded, summed over the steps
    retractions: int = 0


class ContinuousBatch:
    """See the module."""

    def __init__(self, cost: EngineCost, limits: Limits, *, vocabulary: int) -> None:
        self.cost, self.limits = cost, limits
        self.counts = BatchCounts()
        self._vocabulary = vocabulary
        self._held: NDArray[np.void] = np.zeros(0, _HELD)
        self._waiting: dict[int, Entry] = {}  # in order
        self._aborted: dict[int, None] = {}
        self._admitted = 0
        self._fresh = False  # one that executes has not decoded since it entered
        self._sums: tuple[int, int] | None = None  # see `_context_and_left`; None: must be summed up again

    @property
    def executing(self) -> int:
        return len(self._held)

    @property
    def pending(self) -> int:
        return len(self._waiting)

    @property
    def work(self) -> StepWork:
        """All work so far, in rows: tokens of messages, each of which represents `token_scale` tokens."""
        counts, scale = self.counts, self.limits.token_scale
        return StepWork(
            steps=counts.decode_steps / scale,
            tokens=counts.tokens_generated / scale,
            attended=counts.tokens_attended / scale**2,
            prefilled=counts.tokens_prefilled / scale,
            retracted=counts.retractions,
        )

    @property
    def idle(self) -> bool:
        return not (len(self._held) or self._waiting or self._aborted)

    @property
    def context_tokens(self) -> int:
        """Tokens in the cache now, of the modelled model."""
        return self._context_and_left()[0] * self.limits.token_scale

    def knows(self, ticket: int) -> bool:
        """This ticket waits or executes."""
        return ticket in self._waiting or bool((self._held["ticket"] == ticket).any())

    def add(self, entries: Iterable[Entry]) -> None:
        """Queue them, in order."""
        for entry in entries:
            self._waiting[entry.ticket] = entry

    def abort(self, tickets: Sequence[int]) -> None:
        """End these tickets, waiting, executing or unknown; the next turn has a row for each."""
        if not tickets:
            return
        for ticket in tickets:
            self._waiting.pop(ticket, None)
            self._aborted[ticket] = None
        self._held = self._held[~np.isin(self._held["ticket"], np.array(tickets, np.uint32))]
        self._sums = None

    def drain(self) -> None:
        """Abort everything."""
        self.abort([*self._held["ticket"].tolist(), *self._waiting])

    def retract(self, key_of: Callable[[int], int]) -> list[int]:
        """All executing requests wait again, in front; waiting requests continue with the keys from `key_of`,
        by ticket. Returns the tickets."""
        self._retract(self._held)
        self._held, self._sums = self._held[:0], None
        self._waiting = {one: replace(entry, key=key_of(one)) for one, entry in self._waiting.items()}
        return list(self._waiting)

    def turn(self) -> tuple[StepOutput, float]:
        """One frame, and the seconds that it takes."""
        seconds = self._admit()
        ends = list(self._aborted)[: MAX_ROWS - len(self._held)]
        for ticket in ends:
            del self._aborted[ticket]
        each = self._each(MAX_ROWS - len(ends))
        if self._all_give(each):
            output, decode_s = self._turn_of_equals(ends, each)
        else:
            output, decode_s = self._turn_of_any(ends, self._steps(each))
        self.counts.turns += 1
        return output, seconds + decode_s

    def _turn_of_equals(self, ends: list[int], each: int) -> tuple[StepOutput, float]:
        """The usual case: every request has `each` rows in this turn."""
        held, scale = self._held, self.limits.token_scale
        context, left = self._context_and_left()
        rows, steps = len(held), each * scale
        middle = context * scale + rows * (steps - 1) / 2
        seconds = steps * self.cost.decode(rows, middle)
        self.counts.tokens_attended += steps * middle
        output = rows_of_equals(held, each, self._vocabulary)
        if self._fresh:
            output.flags[::each][held["fresh"]] |= np.uint8(Flag.FIRST)
            held["fresh"] = self._fresh = False
        made = held["made"]
        made += each
        self._sums = context + rows * each, left - each
        if left == each:
            goes_on = made < held["end"]
            output.flags[each - 1 :: each][~goes_on] |= np.uint8(Flag.FINISHED)
            self._held, self._sums = held[goes_on], None
        self.counts.decode_steps += steps
        self.counts.tokens_generated += rows * steps
        return behind(ends, output), seconds

    def _turn_of_any(self, ends: list[int], steps: NDArray[np.int64]) -> tuple[StepOutput, float]:
        """Requests have as many rows as `steps` has for them."""
        seconds = self._decode_s(steps)
        output = behind(ends, rows_of(self._held, steps, self._vocabulary))
        held, scale = self._held, self.limits.token_scale
        held["made"] += steps
        held["fresh"] = self._fresh = False
        self._held = held[held["made"] < held["end"]]
        self._sums = None
        self.counts.decode_steps += int(steps.max(initial=0)) * scale
        self.counts.tokens_generated += int(steps.sum()) * scale
        return output, seconds

    def _each(self, most_rows: int) -> int:
        """Rows of each request in a turn, unless it ends before; 0 if none executes."""
        count = len(self._held)
        return max(1, min(self.limits.frame_rows, most_rows // count)) if count else 0

    def _all_give(self, each: int) -> bool:
        """No request has fewer rows left, and the cache has space for all of them."""
        context, left = self._context_and_left()
        rows, limits = len(self._held), self.limits
        full = (context + rows * each) * limits.token_scale > limits.cache_tokens
        return 0 < each <= left and (rows == 1 or not full)

    def _context_and_left(self) -> tuple[int, int]:
        """Rows in the cache, and the fewest rows that a request has left."""
        if self._sums is None:
            held = self._held
            made = held["made"]
            context = int(np.add.reduce(held["prompt"]) + np.add.reduce(made))
            self._sums = context, int(np.minimum.reduce(held["end"] - made, initial=MAX_LEFT))
        return self._sums

    def _admit(self) -> float:
        """Let waiting requests in; the seconds of their prefill."""
        limits, held = self.limits, self._held
        entering: list[Entry] = []
        if not self._waiting or len(held) >= limits.slots:
            return 0.0
        room = limits.cache_tokens - self.context_tokens - limits.reserve_tokens * len(held)
        first = next(iter(self._waiting.values()))
        if len(held) and (first.prompt + first.made) * limits.token_scale + limits.reserve_tokens > room:
            return 0.0
        cached = set(held["prompt_id"].tolist())
        tokens = pairs = 0.0
        for entry in self._waiting.values():
            context = (entry.prompt + entry.made) * limits.token_scale
            if len(held) + len(entering) >= limits.slots:
                break
            if context + limits.reserve_tokens > room and (entering or len(held)):
                break
            room -= context + limits.reserve_tokens
            known = entry.prompt * limits.token_scale if entry.prompt_id in cached else 0
            cached.add(entry.prompt_id)
            tokens += context - known
            pairs += (context * context - known * known) / 2
            entering.append(entry)
        for entry in entering:
            del self._waiting[entry.ticket]
        self._hold(entering)
        self.counts.tokens_prefilled += int(tokens)
        return self.cost.prefill(tokens, pairs)

    def _hold(self, entries: list[Entry]) -> None:
        new = np.zeros(len(entries), _HELD)
        for row, entry in enumerate(entries):
            self._admitted += 1
            new[row] = (
                entry.ticket,
                entry.key,
                entry.prompt_id,
                entry.prompt,
                entry.made,
                entry.end,
                self._admitted,
                True,
            )
        self._held = np.concatenate((self._held, new))
        self._fresh, self._sums = True, None

    def _steps(self, each: int) -> NDArray[np.int64]:
        """Rows of each request in this turn; requests for which the cache has no space are retracted."""
        held, limits = self._held, self.limits
        if not len(held):
            return np.zeros(0, np.int64)
        steps: NDArray[np.int64] = np.minimum(held["end"] - held["made"], each)
        sizes = (held["prompt"] + held["made"] + steps) * limits.token_scale
        excess = int(sizes.sum()) - limits.cache_tokens
        if excess <= 0 or len(held) == 1:
            return steps
        order = np.lexsort((-held["age"], held["made"]))  # shortest response first, the youngest of equals
        freed = np.cumsum(sizes[order])
        count = min(int(np.searchsorted(freed, excess)) + 1, len(held) - 1)
        self._retract(held[order[:count]])
        kept = np.ones(len(held), np.bool_)
        kept[order[:count]] = False
        self._held = held[kept]
        return steps[kept]

    def _retract(self, gone: NDArray[np.void]) -> None:
        again = {
            int(one["ticket"]): Entry(
                ticket=int(one["ticket"]),
                key=int(one["key"]),
                prompt_id=int(one["prompt_id"]),
                prompt=int(one["prompt"]),
                made=int(one["made"]),
                end=int(one["end"]),
            )
            for one in gone[np.argsort(gone["age"])]
        }
        self._waiting = again | self._waiting
        self.counts.retractions += len(again)

    def _decode_s(self, steps: NDArray[np.int64]) -> float:
        """Seconds of the turn's decode steps: stretches of equal rows, each linear in its context."""
        if not len(steps):
            return 0.0
        scale = self.limits.token_scale
        context = (self._held["prompt"] + self._held["made"]) * scale
        most = int(steps.max())
        if int(steps.min()) == most:  # the usual case: no request ends within the turn
            count = most * scale
            middle = int(context.sum()) + len(steps) * (count - 1) / 2
            self.counts.tokens_attended += count * middle
            return count * self.cost.decode(len(steps), middle)
        seconds, done = 0.0, 0
        for until in np.unique(steps).tolist():
            active = steps >= until
            rows, count = int(active.sum()), (until - done) * scale
            middle = int(context[active].sum()) + rows * (done * scale + (count - 1) / 2)
            seconds += count * self.cost.decode(rows, middle)
            self.counts.tokens_attended += count * middle
            done = until
        return seconds
