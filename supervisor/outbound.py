"""The sending side of an actor system: tell at most once, ask with a deadline under one key.

Owns the asks that have no answer yet. Where a name leads is `names`, what arrives is `inbound`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from supervisor.address import Address
from supervisor.asks import Outcome, PendingAsks
from supervisor.cell import Cell, Delivery, lane_of
from supervisor.errors import AskTimeout, Crashed, Unreachable
from supervisor.message import Message, encode_body, kind_of
from supervisor.names import MAX_RETRY_S, RETRY_S
from supervisor.system_messages import SYSTEM
from transport.envelope import Envelope, Lane, Mode, encode
from transport.wire import Peer, Route, Sent

if TYPE_CHECKING:
    from supervisor.system import ActorSystem

R = TypeVar("R", bound=Message)
MAX_RESEND_S = 5.0
_NOT_ADMITTED = (
    "does not admit us: it needs keys, and our node.public in its trusted/ (`rlctl keygen`, then restart it)"
)


class Outbound:
    """See the module; one an actor system."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._pending = PendingAsks()
        system.waits.sources.append(self._pending.waits)
        # Part of every key: a restarted process must not be answered by what its earlier life asked.
        self._life = system.incarnations.mint()
        self._asks = 0

    def answered(self, corr: int, outcome: Outcome) -> bool:
        """An answer came; False when nobody waits for it any longer."""
        return self._pending.resolve(corr, outcome)

    def peer_gone(self, peer: Peer, *, admitted: bool) -> None:
        """No answer will come from this process: it is gone, or it did not admit us."""
        why = "is gone, or does not answer under that key" if admitted else _NOT_ADMITTED
        self._pending.fail_peer(peer, Unreachable(f"the process at {peer.endpoint} {why}"))

    async def tell(self, to: Address | str, message: Message, *, source: Cell | None = None) -> None:
        """See `Context.tell`."""
        if isinstance(to, str):
            name = to
            try:
                to = await self._system.names.resolve(
                    name, self._system.limits.resend_s, source.address.name if source else SYSTEM
                )
            except AskTimeout:
                self._system.dead_letter("tell: nobody holds the name", name, message)
                return
        local = self._system.local(to)
        if local is not None:
            lane = lane_of(local, message)
            if lane is None:
                self._system.dead_letter("tell: not handled", to.name, message)
            elif local is source:
                local.deliver(Delivery(message), lane)  # waiting for oneself would be for ever
            else:
                await local.mailbox.put(lane, Delivery(message))
            return
        if to.endpoint == self._system.wire.local.endpoint:
            self._system.dead_letter("tell: ended", to.name, message)
            return
        frame = self._frame(to, message, Mode.TELL, source=source)
        if self._system.wire.send(to.peer, [frame]) is not Sent.OK:
            self._system.dead_letter("tell: link full or gone", to.name, message)

    async def ask(
        self,
        to: Address | str,
        message: Message,
        *,
        deadline_s: float,
        expect: type[R],
        key: str = "",
        source: Cell | None = None,
    ) -> R:
        """See `Context.ask`."""
        now = asyncio.get_running_loop().time
        deadline = now() + deadline_s
        if source is not None and source.deadline is not None:
            deadline = min(deadline, source.deadline)
        if not key:
            self._asks += 1
            key = f"{self._system.node}/{self._system.process}#{self._life}/{self._asks}"
        pause = RETRY_S
        while True:
            left = deadline - now()
            address: Address | None = None
            try:
                if isinstance(to, str):
                    who = source.address.name if source else SYSTEM
                    address = await self._system.names.resolve(to, left, who)
                else:
                    address = to
                reply = await self._ask_once(address, message, deadline, key, source, isinstance(to, str))
            except Unreachable:
                if isinstance(to, Address):
                    raise
                self._system.names.forget(to)
                if deadline - now() <= 0:
                    raise AskTimeout(
                        f"{kind_of(message)} to {to}: unreachable for {deadline_s:.1f} s"
                    ) from None
                await asyncio.sleep(min(pause, max(deadline - now(), 0.0)))
                pause = min(pause * 1.5, MAX_RETRY_S)
                continue
            if not isinstance(reply, expect):
                raise Crashed(f"{address} answered {kind_of(reply)}, expected {expect.__name__}")
            return reply

    async def _ask_once(
        self, to: Address, message: Message, deadline: float, key: str, source: Cell | None, named: bool
    ) -> Message:
        loop = asyncio.get_running_loop()
        local = self._system.local(to)
        who = source.address.name if source else SYSTEM
        began = loop.time()
        corr, future = self._pending.new(who, to, message, deadline)
        try:
            if local is not None:
                self._system.inbound.admit(
                    local,
                    message,
                    key,
                    deadline,
                    lambda outcome: _ignore(self._pending.resolve(corr, outcome)),
                )
            elif to.endpoint == self._system.wire.local.endpoint:
                raise Unreachable(f"{to} is not alive")
            resend = self._system.limits.resend_s
            while True:
                left = deadline - loop.time()
                if left <= 0:
                    what = f"answer to {kind_of(message)}"
                    self._system.waits.expire(who, what, str(to), loop.time() - began)
                    raise AskTimeout(f"{kind_of(message)} to {to}: no reply by its deadline")
                if local is None:
                    frame = self._frame(
                        to, message, Mode.ASK, source=source, corr=corr, key=key, deadline_left_s=left
                    )
                    self._system.wire.send(to.peer, [frame])
                await asyncio.wait([future], timeout=left if local is not None else min(resend, left))
                if not future.done() and named and local is None:
                    held = await self._system.names.still_held(to, resend)
                    if not held and not future.done():
                        raise Unreachable(f"{to} does not hold its name any longer")
                if future.done():
                    return future.result()
                resend = min(resend * 2, MAX_RESEND_S)
        finally:
            self._pending.forget(corr)

    def system_message(self, to: Peer | Route, message: Message) -> None:
        """A tell to the system of another process."""
        envelope = Envelope(kind=kind_of(message), lane=Lane.SYSTEM, dst=SYSTEM, body=encode_body(message))
        self._system.wire.send(to, [encode(envelope)])

    def _frame(
        self,
        to: Address,
        message: Message,
        mode: Mode,
        *,
        source: Cell | None,
        corr: int = 0,
        key: str = "",
        deadline_left_s: float = 0.0,
    ) -> bytes:
        return encode(
            Envelope(
                kind=kind_of(message),
                mode=mode,
                src=source.address.name if source else SYSTEM,
                src_inc=source.address.incarnation if source else 0,
                dst=to.name,
                dst_inc=to.incarnation,
                corr=corr,
                key=key,
                deadline_left_ms=max(1, int(deadline_left_s * 1000)) if mode is Mode.ASK else 0,
                body=encode_body(message),
            )
        )


def _ignore(_value: object) -> None:
    return None
