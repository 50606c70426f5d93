"""`OutboundAsks`: asks of an actor system (with a deadline, under one key).

Owns the asks that have no answer yet, and when one is sent again. `names.client` resolves names; `outbound`
sends messages without an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, TypeVar

from gleaner.supervisor.address import Address
from gleaner.supervisor.cell import IN_HAND, Cell
from gleaner.supervisor.errors import AskTimeout, Crashed, Suspended, Unreachable
from gleaner.supervisor.inspection.vitals import Recovery
from gleaner.supervisor.message import Message, kind_of
from gleaner.supervisor.names.client import MAX_RETRY_S, RETRY_S
from gleaner.supervisor.outbound_frames import OutboundFrames, name_of
from gleaner.supervisor.pending_asks import Outcome, PendingAsk, PendingAsks
from gleaner.supervisor.system_messages import SYSTEM
from gleaner.supervisor.tracing import Tracer
from gleaner.transport.envelope import Mode
from gleaner.transport.wire import Peer

if TYPE_CHECKING:
    from gleaner.supervisor.system import ActorSystem

R = TypeVar("R", bound=Message)
MAX_RESEND_S = 5.0
FIRST_LOOK_S, MAX_LOOK_S = 0.05, 0.4
"""Pauses between two lookups of the name of a process that is gone; they grow. A restarted process is up
within a second or two, and then no caller should wait for the time of a re-send."""
SUSPENDED_RETRY_S = 0.5  # a receiver that takes nothing for now checks once a second whether it can


class OutboundAsks:
    """See the module; one an actor system."""

    def __init__(self, system: ActorSystem, frames: OutboundFrames) -> None:
        self._system = system
        self._frames = frames
        self._pending = PendingAsks()
        system.waits.sources.append(self._pending.waits)
        # Part of every key: a restarted process must not be answered by what its earlier life asked.
        self._key = f"{system.node}/{system.process}#{system.life}/"
        self._asks = 0
        self._times = system.inspection.vitals.asks
        self._recoveries = system.inspection.vitals.recoveries

    def answered(self, corr: int, outcome: Outcome) -> bool:
        """An answer arrived; False when no caller waits for it any longer."""
        return self._pending.resolve(corr, outcome)

    def fail(self, peer: Peer, problem: Exception) -> None:
        """No answer will arrive from this process."""
        self._pending.fail_peer(peer, problem)

    def ask(
        self,
        to: Address | str,
        message: Message,
        *,
        deadline_s: float,
        expect: type[R],
        key: str = "",
        source: Cell | None = None,
    ) -> Coroutine[object, object, R]:
        """See `Context.ask`."""
        if self._system.tracer is None:
            return self._ask(to, message, deadline_s, expect, key, source, self._frames.trace(source))
        return self._ask_traced(self._system.tracer, to, message, deadline_s, expect, key, source)

    async def _ask_traced(
        self,
        tracer: Tracer,
        to: Address | str,
        message: Message,
        deadline_s: float,
        expect: type[R],
        key: str,
        source: Cell | None,
    ) -> R:
        name = to if isinstance(to, str) else to.name
        span = tracer.ask(name_of(source), name, message, self._frames.trace(source))
        try:
            reply = await self._ask(to, message, deadline_s, expect, key, source, span.trace)
        except BaseException as problem:
            span.end(problem)
            raise
        span.end()
        return reply

    async def _ask(
        self,
        to: Address | str,
        message: Message,
        deadline_s: float,
        expect: type[R],
        key: str,
        source: Cell | None,
        trace: str,
    ) -> R:
        now = asyncio.get_running_loop().time
        deadline = now() + deadline_s
        if source is not None and source.deadline is not None and IN_HAND.get() is source:
            deadline = min(deadline, source.deadline)
        pause = RETRY_S
        suspended: Suspended | None = None
        while True:
            address: Address | None
            try:
                if isinstance(to, str):
                    address = self._system.names.known(to)
                    if address is None:
                        address = await self._system.names.resolve(to, deadline - now(), name_of(source))
                else:
                    address = to
                if address.endpoint == self._system.endpoint:
                    reply = await self._ask_local(address, message, deadline, key, source, trace)
                else:
                    if not key and not message.QUESTION:
                        self._asks += 1
                        key = f"{self._key}{self._asks}"
                    reply = await self._ask_remote(
                        address, message, deadline, key, source, trace, isinstance(to, str)
                    )
            except Unreachable:
                if isinstance(to, Address):
                    raise
                self._system.names.forget(to)
                if deadline - now() <= 0:
                    raise AskTimeout(
                        f"{kind_of(message)} to {to}: unreachable for {deadline_s:.1f} s"
                    ) from None
                await asyncio.sleep(min(pause, max(deadline - now(), 0.0)))
                pause = min(pause * 2, MAX_RETRY_S)
                continue
            except Suspended as problem:
                if now() + SUSPENDED_RETRY_S >= deadline:
                    raise
                suspended = problem
                await asyncio.sleep(SUSPENDED_RETRY_S)
                continue
            except AskTimeout:
                if suspended is not None:  # its last answer: it takes nothing for now, and why
                    raise suspended from None
                raise
            if not isinstance(reply, expect):
                raise Crashed(f"{address} answered {kind_of(reply)}, expected {expect.__name__}")
            return reply

    async def _ask_local(
        self, to: Address, message: Message, deadline: float, key: str, source: Cell | None, trace: str
    ) -> Message:
        local = self._system.local(to)
        if local is None:
            raise Unreachable(f"{to} is not alive")
        pending = self._new(message, to, None, source, deadline)
        if self._system.tap is not None:
            self._system.tap.seen("local", "ask", pending.source, to.name, message)
        try:
            asker = (b"", pending.corr)
            self._system.inbound.admit(
                local, message, key, deadline, asker, pending.resolve, pending.source, trace
            )
            outcome = await pending.wait(deadline)
        finally:
            self._pending.forget(pending.corr)
        if self._system.tap is not None and isinstance(outcome, Message):
            self._system.tap.seen("local", "reply", to.name, pending.source, outcome)
        return self._result(pending, outcome)

    async def _ask_remote(
        self,
        to: Address,
        message: Message,
        deadline: float,
        key: str,
        source: Cell | None,
        trace: str,
        named: bool,
    ) -> Message:
        now = asyncio.get_running_loop().time
        peer = self._frames.peer(to)
        pending = self._new(message, to, peer, source, deadline)
        if self._system.tap is not None and to.name != SYSTEM:
            self._system.tap.seen("out", "ask", pending.source, to.name, message)
        resend = self._system.limits.resend_s
        try:
            while True:
                left = deadline - now()
                if left <= 0:
                    return self._result(pending, None)
                left_ms = max(1, int(left * 1000))
                packed = self._frames.packed(to, message, Mode.ASK, source, trace, pending.corr, key, left_ms)
                self._system.links.send(peer, packed)
                outcome = await self._answer(pending, min(deadline, now() + resend), named)
                if outcome is None and named and (left := deadline - now()) > 0:
                    await self._look_up_holder(pending, min(resend, left))
                    outcome = pending.outcome
                if outcome is not None:
                    return self._result(pending, outcome)
                self._recoveries[Recovery.ASK_SENT_AGAIN] += 1
                resend = min(resend * 2, MAX_RESEND_S)
        finally:
            self._pending.forget(pending.corr)

    async def _answer(self, pending: PendingAsk, until: float, named: bool) -> Outcome | None:
        """Wait for the answer. If the process that was asked by name is gone, its successor has the name as
        soon as it is up; the registry is asked for it meanwhile. Raises Unreachable."""
        now = asyncio.get_running_loop().time
        look_s = FIRST_LOOK_S
        while named and self._frames.gone(pending.peer) and now() + look_s < until:
            outcome = await pending.wait(now() + look_s)
            if outcome is not None:
                return outcome
            await self._look_up_holder(pending, max(0.0, until - now()))
            look_s = min(2 * look_s, MAX_LOOK_S)
        return await pending.wait(until)

    async def _look_up_holder(self, pending: PendingAsk, within_s: float) -> None:
        """Ends with the answer, if that arrives first: a registry that is away, or names no holder, must
        not delay it. Raises Unreachable if the registry names another holder, and no answer arrived
        meanwhile."""
        loop = asyncio.get_running_loop()
        looking = loop.create_task(self._system.names.still_held(pending.to, within_s))
        looking.add_done_callback(lambda _: pending.wake())
        try:
            while pending.outcome is None and not looking.done() and loop.time() < pending.deadline:
                await pending.wait(pending.deadline)
        finally:
            looking.cancel()
        if pending.outcome is None and looking.done() and not looking.result():
            raise Unreachable(f"{pending.to} does not hold its name any longer")

    def _new(
        self, message: Message, to: Address, peer: Peer | None, source: Cell | None, deadline: float
    ) -> PendingAsk:
        now = asyncio.get_running_loop().time()
        return self._pending.new(message, to, peer, name_of(source), now, deadline)

    def _result(self, pending: PendingAsk, outcome: Outcome | None) -> Message:
        """The result for the caller of an ask, or the error for a missing answer."""
        waited_s = asyncio.get_running_loop().time() - pending.since
        if outcome is None:
            kind = kind_of(pending.message)
            self._system.waits.expire(pending.source, f"answer to {kind}", str(pending.to), waited_s)
            outcome = AskTimeout(f"{kind} to {pending.to}: no reply by its deadline")
        if isinstance(outcome, Exception):
            self._times.fail(outcome)
            raise outcome
        self._times.add(waited_s)
        return outcome
