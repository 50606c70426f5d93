"""Departure: drains a host after a notice, keeps it if the notice is taken back.

Owns the newest notice, the hand-over within the time that is left, and its undoing. An order to leave
(`order`) is final: the host leaves as soon as it is empty. A cloud may take its notice (`receive`) back until
the end. So an empty host waits for that end, unless the cloud wants an early acknowledgement. The
notification to the manager (of a reward host: to the reward proxy) is repeated while it holds, because these
may restart. What the host was ordered outlives the actor (`Orders`): an order is sent once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Literal

from gleaner.actors.cluster.host_events import HostEvents
from gleaner.actors.names import MANAGER, REWARD, SCHEDULER
from gleaner.actors.protocol.cluster import CloudNotice, HandedOver, JobSpec, NodeSeen
from gleaner.actors.protocol.instances import NewWork, Withdraw, Withdrawn
from gleaner.supervisor import AskFailed, Context, Done, Refused

REPORTED_LATE_S = 5.0
"""A host that is empty leaves after so long, also if its drain could not be reported."""
MOST_EVENTS = 64
"""Of this host that the Scheduler has not accepted; the oldest are dropped first."""
ASK_DEADLINE_S = 2.0
ACKNOWLEDGE_DEADLINE_S = 5.0
AGAIN_S = 2.0
MARGIN_S = 2.0  # of a notice is kept for stopping the children, at most half of it
SAME_S = 1.0  # clouds use whole seconds: ignore smaller changes of the end
MAX_NOTICE_S = 86_400.0  # no cloud gives notice of more than minutes
OWNERS = {"preemptible": (MANAGER, "engine"), "reward": (REWARD, "reward")}
"""Of each role that may leave: the actor that gives its host work, and the one on the host that does it."""


@dataclass(slots=True)
class Orders:
    """What this host was ordered, and which of it was reported. Its process keeps it: a node agent that
    crashed continues with it.

    `kind`: of the cloud's newest notice. `ends_s`: when the host goes, by the clock of the process. `final`:
    the departure can no longer be taken back. `goes`: the host stops now.
    """

    kind: str | None = None
    ends_s: float = 0.0
    acknowledges: bool = False
    final: bool = False
    goes: bool = False
    noticed: bool = False
    drained: bool = False


class Departure:
    """See the module.

    Args:
        role: of the host.
        connected: whether the head answered the last hello.
        job: the job whose part runs here, if any.
        become: takes the host's state from now on, up or draining.
        go: ends the host in order; called once.
    """

    def __init__(
        self,
        ctx: Context,
        role: str,
        *,
        connected: Callable[[], bool],
        job: Callable[[], JobSpec | None],
        become: Callable[[str], None],
        go: Callable[[], None],
    ) -> None:
        self._ctx, self._role, self._orders = ctx, role, Orders()
        self._owner, own = OWNERS.get(role, OWNERS["preemptible"])
        self._instance = f"{ctx.node}/{own}"
        self._connected, self._job, self._become, self._go = connected, job, become, go
        self._trouble = ""
        self._task: asyncio.Task[None] | None = None
        self._events: HostEvents | None = None

    def resume(self, orders: Orders) -> None:
        """Continue with what the host was ordered in an earlier life of its node agent, and note there what
        comes."""
        self._orders = orders
        if orders.goes:
            self._go()
        elif orders.final or orders.kind == "notice":
            self._leave()
        elif orders.kind is not None:
            self._follow(self._stay(orders.kind), "stay")

    def over(self) -> None:
        """The host leaves now, unconditionally."""
        self._orders.final = self._orders.goes = True

    def order(self, deadline_s: float) -> None:
        """Leave within that time. A second order changes nothing; a cloud's notice is made final by it."""
        orders, ends_s = self._orders, self._ctx.now() + deadline_s
        if orders.final:
            return
        orders.final = True
        orders.ends_s = min(ends_s, orders.ends_s) if orders.kind == "notice" else ends_s
        self._leave()

    def receive(self, message: CloudNotice) -> None:
        """Apply the cloud's newest notice. Raises Refused for an invalid deadline."""
        if not message.deadline_s >= 0:
            raise Refused(f"deadline_s is {message.deadline_s}, expected a number of seconds from 0 up")
        orders, ends_s = self._orders, self._ctx.now() + min(message.deadline_s, MAX_NOTICE_S)
        same = message.kind == orders.kind and (
            message.kind != "notice"
            or (abs(ends_s - orders.ends_s) < SAME_S and message.acknowledges == orders.acknowledges)
        )
        if orders.final or same:
            return
        orders.kind, orders.acknowledges = message.kind, message.acknowledges
        if message.kind == "notice":
            orders.ends_s = ends_s
            self._leave()
        else:
            self._follow(self._stay(message.kind), "stay")

    async def acknowledge(self) -> None:
        """Notify the cloud that this host is empty, if it requested that."""
        if not self._orders.acknowledges:
            return
        to = f"{self._ctx.node}/notices"
        try:
            await self._ctx.ask(to, HandedOver(), deadline_s=ACKNOWLEDGE_DEADLINE_S, expect=Done)
        except AskFailed as problem:
            self._ctx.log.warning("could not notify the cloud that this host is empty: %s", problem)

    # -- going --

    def _leave(self) -> None:
        left_s = max(0.0, self._orders.ends_s - self._ctx.now())
        self._become("draining")
        self._ctx.log.info("notice: this host goes away in %.1f s", left_s)
        self._follow(self._drain(left_s), "drain")

    def _follow(self, work: Coroutine[object, object, None], what: str) -> None:
        """Start the newest task; cancel the one before."""
        if self._task is not None:
            self._task.cancel()
        self._task = self._ctx.background(work, what)

    async def _drain(self, left_s: float) -> None:
        if not self._orders.noticed:
            self._orders.noticed = True
            self._report("noticed")
        margin_s = min(MARGIN_S, left_s / 2)
        empty_by_s = self._orders.ends_s - margin_s
        while (grace_s := empty_by_s - self._ctx.now()) > 0:
            if self._orders.final and not self._connected():  # no manager to hand over to
                self._ctx.log.warning("leaving without handing over: the head does not answer")
                break
            empty = self._job() is None or await self._hand_over(grace_s, margin_s / 2)
            if self._orders.final or (empty and self._orders.acknowledges):
                break
            await asyncio.sleep(max(0.0, min(AGAIN_S, empty_by_s - self._ctx.now())))
        self._orders.final = True
        self._go()

    async def _hand_over(self, grace_s: float, travel_s: float) -> bool:
        """Whether the instance holds nothing. If the manager could not be asked, its requests continue
        elsewhere from the collected tokens."""
        withdraw = Withdraw(instance=self._instance, grace_s=grace_s, leaves=True)
        try:
            done = await self._ctx.ask(self._owner, withdraw, deadline_s=grace_s + travel_s, expect=Withdrawn)
        except AskFailed as problem:
            if self._orders.final:
                self._ctx.log.warning("left without handing over: %s", problem)
            elif str(problem) != self._trouble:
                self._ctx.log.info("not handed over yet: %s", problem)
            self._trouble = str(problem)
            return False
        if not self._orders.drained:
            self._orders.drained = True
            self._ctx.log.info("drained; %d requests go on elsewhere", done.handed_over)
            await self._report("drained").reported(REPORTED_LATE_S)
        return True

    # -- staying --

    async def _stay(self, kind: str) -> None:
        """Undo a notice, and allow new requests; upon a hint keep them off all the time."""
        if self._orders.noticed:
            self._orders.noticed = self._orders.drained = False
            self._ctx.log.info("notice taken back: this host stays")
            self._become("up")
            self._report("spared")
        if kind == "none":
            while not await self._allow(allowed=True):  # noqa: ASYNC110 (another host is asked)
                await asyncio.sleep(AGAIN_S)
        while kind == "hint":
            await self._allow(allowed=False)
            await asyncio.sleep(AGAIN_S)

    async def _allow(self, *, allowed: bool) -> bool:
        """Whether the manager knows; it need not where no job runs."""
        if self._job() is None:
            return True
        message = NewWork(instance=self._instance, allowed=allowed)
        try:
            await self._ctx.ask(self._owner, message, deadline_s=ASK_DEADLINE_S, expect=Done)
        except AskFailed as problem:
            if str(problem) != self._trouble:
                self._trouble = str(problem)
                self._ctx.log.info("could not notify the manager yet: %s", problem)
            return False
        return True

    def _report(self, event: Literal["noticed", "drained", "spared"]) -> HostEvents:
        """Report an event to the Scheduler, also to one that is away for now."""
        if self._events is None:
            self._events = HostEvents(self._ctx, SCHEDULER, MOST_EVENTS)
            self._ctx.background(self._events.run(), "report")
        self._events.add([NodeSeen(node=self._ctx.node, role=self._role, event=event)])
        return self._events
