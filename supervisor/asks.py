"""Both ends of an ask: the callers that wait for an answer, and the answers kept for callers that ask again.

Pure bookkeeping over futures and time stamps; the actor system moves the bytes.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from supervisor.address import Address
from supervisor.message import Message, kind_of
from supervisor.system_messages import WaitState
from transport.wire import Peer

Outcome = Message | Exception
Reply = Callable[[Outcome], None]

MAX_KEPT = 8192
"""Answers kept for re-sent asks; the oldest go first. A re-send after that is executed again, as the domain
key allows."""


@dataclass(slots=True)
class _Pending:
    future: asyncio.Future[Message]
    peer: Peer
    who: str
    to: Address
    message: Message
    since: float
    deadline: float


class PendingAsks:
    """Asks that this process sent and that have no answer yet; bounded by their deadlines."""

    def __init__(self) -> None:
        self._pending: dict[int, _Pending] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._pending)

    def new(
        self, who: str, to: Address, message: Message, deadline: float
    ) -> tuple[int, asyncio.Future[Message]]:
        """A correlation number and the future that its answer resolves."""
        self._last += 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Message] = loop.create_future()
        self._pending[self._last] = _Pending(future, to.peer, who, to, message, loop.time(), deadline)
        return self._last, future

    def waits(self, now: float) -> Iterator[WaitState]:
        """The asks as waits on somebody, oldest first; made when somebody looks."""
        for pending in list(self._pending.values()):
            yield WaitState(
                who=pending.who,
                what=f"answer to {kind_of(pending.message)}",
                on=str(pending.to),
                since_s=now - pending.since,
                left_s=max(pending.deadline - now, 0.0),
            )

    def forget(self, corr: int) -> None:
        """The caller has given up."""
        self._pending.pop(corr, None)

    def resolve(self, corr: int, outcome: Outcome) -> bool:
        """Hand the answer over; False when nobody waits for it."""
        pending = self._pending.pop(corr, None)
        if pending is None or pending.future.done():
            return False
        if isinstance(outcome, Exception):
            pending.future.set_exception(outcome)
        else:
            pending.future.set_result(outcome)
        return True

    def fail_peer(self, peer: Peer, problem: Exception) -> None:
        """The process that should answer is dead: nobody waits for it any longer."""
        for corr in [corr for corr, pending in self._pending.items() if pending.peer == peer]:
            self.resolve(corr, problem)


@dataclass(slots=True)
class _Served:
    expires: float
    outcome: Outcome | None = None
    waiting: list[Reply] = field(default_factory=list)


class ServedAsks:
    """Makes a re-sent ask take effect once: the first one runs, the others get its answer.

    An entry lives as long as its caller may still re-send (its deadline), and at most `MAX_KEPT` are kept.
    """

    def __init__(self) -> None:
        self._served: OrderedDict[tuple[str, int, str], _Served] = OrderedDict()

    def admit(
        self, receiver: tuple[str, int], key: str, expires: float, now: float, reply: Reply
    ) -> Reply | None:
        """Where the handler's outcome goes, or None when this ask is a repetition (already answered or
        running)."""
        entry_key = (*receiver, key)
        entry = self._served.get(entry_key)
        if entry is not None:
            if entry.outcome is not None:
                reply(entry.outcome)
            else:
                entry.waiting.append(reply)
            return None
        while self._served:
            oldest = next(iter(self._served.values()))
            if oldest.expires > now and len(self._served) < MAX_KEPT:
                break
            self._served.popitem(last=False)
        entry = _Served(expires, waiting=[reply])
        self._served[entry_key] = entry

        def done(outcome: Outcome) -> None:
            entry.outcome = outcome
            if isinstance(outcome, Exception):
                self._served.pop(entry_key, None)  # a failed ask may be tried again
            for waiting in entry.waiting:
                waiting(outcome)
            entry.waiting.clear()

        return done
