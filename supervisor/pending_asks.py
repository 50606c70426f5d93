"""PendingAsks and the answer cache: both ends of an ask.

One end holds the callers that wait for an answer, the other keeps answers for repeated asks. Pure bookkeeping
over futures and time stamps; the actor system moves the bytes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator

from gleaner.supervisor.address import Address
from gleaner.supervisor.message import Message, kind_of
from gleaner.supervisor.system_messages import WaitState
from gleaner.supervisor.watch.turn_clock import TICK_S
from gleaner.transport.wire import Peer

Outcome = Message | Exception
Reply = Callable[[Outcome], None]
Asker = tuple[bytes, int]
"""The asking side: the route back to it, and the number under which it waits for the answer."""

MAX_KEPT = 8192
"""Answers kept for repeated asks; the oldest go first. A later repetition is executed again, as the domain
key allows."""


class PendingAsk:
    """One ask without an answer: asking actor, message, receiver, start and deadline (loop time)."""

    __slots__ = (
        "_timer",
        "_waiter",
        "corr",
        "deadline",
        "message",
        "outcome",
        "peer",
        "since",
        "source",
        "to",
    )

    def __init__(
        self,
        corr: int,
        message: Message,
        to: Address,
        peer: Peer | None,
        source: str,
        since: float,
        deadline: float,
    ) -> None:
        self.corr = corr
        self.message = message
        self.to = to
        self.peer = peer
        self.source = source
        self.since = since
        self.deadline = deadline
        self.outcome: Outcome | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle

    def resolve(self, outcome: Outcome) -> None:
        """The answer is there; later ones change nothing."""
        if self.outcome is None:
            self.outcome = outcome
            self.wake()

    async def wait(self, until: float) -> Outcome | None:
        """The answer, or None at the loop's time `until`; a little later if this process was stalled then:
        messages that arrived meanwhile are read first."""
        if self.outcome is None:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            self._timer = loop.call_at(until, self._due, loop, until)
            try:
                await self._waiter
            finally:
                self._timer.cancel()
                self._waiter = None
        return self.outcome

    def _due(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        """Not by `when` of the timer: uvloop has none for a moment that is almost there."""
        if loop.time() - until < TICK_S:
            self.wake()
        else:
            self._timer = loop.call_later(TICK_S, self.wake)

    def wake(self) -> None:
        """End `wait`, with the answer or without."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class PendingAsks:
    """Asks that this process sent and that have no answer yet; bounded by their deadlines."""

    def __init__(self) -> None:
        self._pending: dict[int, PendingAsk] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._pending)

    def waits(self, now: float) -> Iterator[WaitState]:
        """The asks as waits, oldest first; computed when a caller lists them."""
        for pending in list(self._pending.values()):
            yield WaitState(
                who=pending.source,
                what=f"answer to {kind_of(pending.message)}",
                on=str(pending.to),
                since_s=now - pending.since,
                left_s=max(pending.deadline - now, 0.0),
            )

    def new(
        self, message: Message, to: Address, peer: Peer | None, source: str, since: float, deadline: float
    ) -> PendingAsk:
        """Register an ask; `peer` is None for an actor of this process."""
        self._last += 1
        pending = PendingAsk(self._last, message, to, peer, source, since, deadline)
        self._pending[self._last] = pending
        return pending

    def forget(self, corr: int) -> None:
        """The caller has its answer, or has given up."""
        self._pending.pop(corr, None)

    def resolve(self, corr: int, outcome: Outcome) -> bool:
        """Pass the answer on; False when no caller waits for it."""
        pending = self._pending.get(corr)
        if pending is None or pending.outcome is not None:
            return False
        pending.resolve(outcome)
        return True

    def fail_peer(self, peer: Peer, problem: Exception) -> None:
        """The process that should answer is dead: fail its asks."""
        for pending in [pending for pending in self._pending.values() if pending.peer == peer]:
            pending.resolve(problem)


class _Served:
    __slots__ = ("expires", "outcome", "waiting")

    def __init__(self, expires: float, asker: Asker, reply: Reply) -> None:
        self.expires = expires
        self.outcome: Outcome | None = None
        self.waiting: dict[Asker, Reply] | None = {asker: reply}

    def answer(self, outcome: Outcome) -> None:
        """Keep the answer for repetitions, and send it to the callers that wait already."""
        self.outcome = outcome
        waiting, self.waiting = self.waiting, None
        for reply in (waiting or {}).values():
            reply(outcome)


class ServedAsks:
    """Makes a repeated ask take effect once: the first one runs, the others get its answer.

    An entry lives as long as its caller may still re-send (its deadline), and at most `MAX_KEPT` are kept. A
    failed one is not kept: it may be tried again.
    """

    def __init__(self) -> None:
        self._served: OrderedDict[tuple[str, int, str], _Served] = OrderedDict()

    def admit(
        self, receiver: tuple[str, int], key: str, expires: float, now: float, asker: Asker, reply: Reply
    ) -> Reply | None:
        """The callback for the handler's outcome, or None when this ask is a repetition (already answered or
        running)."""
        if self.join(receiver, key, asker, reply):
            return None
        served = self._served
        while served:
            oldest = next(iter(served))
            if served[oldest].expires > now and len(served) < MAX_KEPT:
                break
            del served[oldest]
        entry = _Served(expires, asker, reply)
        served[(*receiver, key)] = entry
        return entry.answer

    def join(self, receiver: tuple[str, int], key: str, asker: Asker, reply: Reply) -> bool:
        """Give `asker` the outcome of the ask under this key, if there is one. It gets it once, however often
        it asks while the answer is pending."""
        entry = self._served.get((*receiver, key))
        if entry is None or isinstance(entry.outcome, Exception):
            return False
        if entry.outcome is not None:
            reply(entry.outcome)
        elif entry.waiting is not None:
            entry.waiting[asker] = reply
        return True

    def inherit(self, old: tuple[str, int], new: tuple[str, int]) -> None:
        """Asks without an answer of the life `old` pass to `new`."""
        for (*receiver, key), entry in list(self._served.items()):
            if tuple(receiver) == old and entry.outcome is None:
                self._served[(*new, key)] = entry
