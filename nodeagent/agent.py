"""NodeAgent: represents a host in the cluster, runs its job, leaves in order.

Owns the host's state (up, draining, leaving) and the order of leaving. First the engine's requests are handed
over (`departure`), then the children stop (`children`), then the agent sends its last hello to the head, then
the process exits. The agent waits for a head that vanished: the children continue meanwhile, and reconnect by
themselves.
"""

import asyncio
from collections.abc import Callable
from signal import Signals

from gleaner.actors.names import SCHEDULER
from gleaner.actors.protocol.cluster import (
    CloudNotice,
    Inventory,
    JobSpec,
    KillChild,
    NodeHello,
    NodeSeen,
    NodeWork,
    PreemptionNotice,
    SayHello,
    StopNode,
)
from gleaner.actors.protocol.weights import HostLeaves
from gleaner.configs.load import ConfigError
from gleaner.nodeagent.children import Children
from gleaner.nodeagent.defaults import MAY_LEAVE
from gleaner.nodeagent.departure import AGAIN_S, ASK_DEADLINE_S, Departure, Orders
from gleaner.nodeagent.exit_codes import FAILED, OK, CannotRun, UnmetRequirements, as_cannot_run
from gleaner.supervisor import Actor, AskFailed, Done, JournalError, Lane, NotAdmitted, Refused, handles

REPORT_DEADLINE_S = 5.0
HELLO_AGAIN_S = 0.5  # pause after an unanswered hello; an answer contains the pause of the Scheduler's choice
HELLO_WITHIN_S = (0.05, 60.0)  # bounds of that choice
HELLO_DEADLINE_S = 2.0
MAX_STRANGER_S = 15.0  # between two hellos to a head that does not admit our key; doubled up to it
GOODBYE_DEADLINE_S = 1.0  # if the goodbye is lost, the host counts as killed, which is harmless
CHILDREN_LATE_S = 60.0  # a start or stop of children that takes so long is logged, again each time
TRIAL_LOOK_S = 1.0  # between two looks at an engine that was launched with another width
MAX_TROUBLES = 8  # reported reasons that are remembered; more would be the same few in turn

Leave = Callable[[int, str], None]


class NodeAgent(Actor):
    """See the module.

    Args:
        role: one of `defaults.ROLES`.
        inventory: what the host has.
        children: what runs here.
        orders: what this host was ordered, in earlier lives of this actor too.
        leave: ends the process with an exit code and a reason.
        say: prints a line for the user that started the process.
    """

    def __init__(
        self,
        role: str,
        inventory: Inventory,
        children: Children,
        orders: Orders,
        leave: Leave,
        say: Callable[[str], None],
    ) -> None:
        self._role = role
        self._inventory = inventory
        self._children = children
        self._orders = orders
        self._leave = leave
        self._say = say
        self._state = "up"
        self._wanted: JobSpec | None = children.job
        self._done = ""  # the job that is over, according to the head
        self._width = 0  # planned for the engine here
        self._given = asyncio.Event()
        self._news = asyncio.Event()  # the next hello is due now
        self._lacks = ""  # what its part of the job needs, and this host has not
        self._going = False
        self._notifying: asyncio.Task[None] | None = None  # the transfer agent, of the newest state
        self._connected = False
        self._stranger_s = HELLO_AGAIN_S  # until the next hello to a head that does not admit us
        self._troubles: list[str] = []  # why the head was not reached since it last answered

    async def on_start(self) -> None:
        self._departure = Departure(
            self.ctx,
            self._role,
            connected=lambda: self._connected,
            job=lambda: self._children.job,
            become=self._become,
            go=self._go_once,
        )
        self._departure.resume(self._orders)
        self.ctx.background(self._keep_in_touch(), "hellos")
        self.ctx.background(self._run(), "job")

    # -- the head --

    async def _keep_in_touch(self) -> None:
        """Send a hello periodically; apply the answers."""
        while True:
            self._news.clear()
            try:
                work = await self._hello(HELLO_DEADLINE_S)
            except AskFailed as problem:
                self._connected = False
                pause_s = self._missed(problem)
            else:
                if not self._connected:
                    self.ctx.log.info("in touch with the head")
                least_s, most_s = HELLO_WITHIN_S
                pause_s = max(least_s, min(work.hello_s, most_s))
                self._connected = True
                self._stranger_s = HELLO_AGAIN_S
                self._troubles.clear()
                if self._state == "up" and (work.job, work.width) != (self._wanted, self._width):
                    self._wanted, self._done, self._width = work.job, work.done, work.width
                    self._given.set()
            await self.ctx.idle(self._news, pause_s)

    def _missed(self, problem: AskFailed) -> float:
        """Report each reason once and remember the newest ones; return the pause until the next hello."""
        stranger = NotAdmitted in (type(problem), type(problem.__cause__))
        why = f"{problem}; {self._how_to_be_admitted()}" if stranger else str(problem)
        if why in self._troubles:
            self._troubles.remove(why)
        else:
            self.ctx.log.warning("the head does not answer, trying on: %s", why)
            self._say(f"the head does not answer, trying on: {why}")
        self._troubles = [*self._troubles, why][-MAX_TROUBLES:]
        if not stranger:
            self._stranger_s = HELLO_AGAIN_S
            return HELLO_AGAIN_S
        pause_s = self._stranger_s * self.ctx.rng.uniform(0.5, 1.0)
        self._stranger_s = min(2 * self._stranger_s, MAX_STRANGER_S)
        return pause_s

    def _how_to_be_admitted(self) -> str:
        key = self.ctx.address.public_key
        if not key:
            return "this host has no keys: start it with --keys and --head-key"
        return f"on the head: rlctl trust '{key}' --name {self.ctx.node} --keys DIR, its key directory"

    async def _hello(self, deadline_s: float) -> NodeWork:
        hello = NodeHello(
            node=self.ctx.node,
            role=self._role,
            agent=self.ctx.address,
            inventory=self._inventory,
            state=self._state,
            run_id=self._children.job.run_id if self._children.job is not None else "",
            width=self._children.width,
        )
        return await self.ctx.ask(SCHEDULER, hello, deadline_s=deadline_s, expect=NodeWork)

    async def _run(self) -> None:
        """Beside the hellos: children may take longer to start or stop than the silence that counts."""
        while True:
            if not await self.ctx.idle(self._given, TRIAL_LOOK_S if self._children.on_trial else None):
                await self._children.look()
                continue
            self._given.clear()
            job, self._lacks = self._wanted, ""
            try:
                async with self.ctx.wait(
                    "its children", on=self._on(), deadline_s=CHILDREN_LATE_S, go_on=True
                ):
                    await self._children.run(job, self._done, self._width)
                self._news.set()  # other hosts may wait until this one has released the last job
            except UnmetRequirements as problem:
                self._unfit(str(problem))
            except (CannotRun, ConfigError, OSError, JournalError) as problem:
                known = as_cannot_run(problem)
                code = known.code if known is not None else FAILED
                self._leave(code, f"cannot run job {job.run_id if job is not None else ''}: {problem}")

    def _unfit(self, lacks: str) -> None:
        """Nothing of the job runs here: its engine would end as often as it is started."""
        self._lacks = lacks
        self.ctx.log.error("this host cannot run its part of the job: %s", lacks)
        self._say(f"this host cannot run its part of the job: {lacks}")
        self.ctx.background(self._tell_unfit(lacks), "report")

    async def _tell_unfit(self, lacks: str) -> None:
        seen = NodeSeen(node=self.ctx.node, role=self._role, event="unfit", cause=lacks)
        while self._lacks == lacks:
            try:
                await self.ctx.ask(SCHEDULER, seen, deadline_s=REPORT_DEADLINE_S, expect=Done)
                return
            except AskFailed as problem:
                self.ctx.log.warning("could not report that this host is unfit: %s", problem)
                await asyncio.sleep(HELLO_AGAIN_S)

    @handles(SayHello, lane=Lane.SYSTEM)
    async def called(self, message: SayHello) -> None:
        self._news.set()

    # -- leaving --

    @handles(PreemptionNotice, lane=Lane.SYSTEM)
    async def preempted(self, message: PreemptionNotice) -> None:
        """Drain within the time that is left, then leave. A deadline of 0 means now."""
        self._may_drain()
        self._departure.order(message.deadline_s)

    @handles(CloudNotice, lane=Lane.SYSTEM)
    async def cloud_notice(self, message: CloudNotice) -> None:
        """Apply a notice of the cloud; the newest one counts."""
        self._may_drain()
        self._departure.receive(message)

    def _may_drain(self) -> None:
        if self._role not in MAY_LEAVE:
            able = " and ".join(MAY_LEAVE)
            raise Refused(f"{self.ctx.node} is a {self._role} host: only {able} ones drain; stop it")

    def _become(self, state: str) -> None:
        if not self._going:
            if self._role != "reward" and self._children.job is not None and state != self._state:
                leaves = HostLeaves(leaves=state == "draining")
                if self._notifying is not None:
                    self._notifying.cancel()
                self._notifying = self.ctx.background(
                    self._tell_transfer(leaves), "notify the transfer agent"
                )
            self._state = state
            if state == "up":
                self._news.set()  # there may be a job to run since

    async def _tell_transfer(self, message: HostLeaves) -> None:
        """Repeat it until it is accepted: a host that leaves gets no source for weights, so a lost message
        that it stays would keep its engine without them."""
        trouble = ""
        while self._children.job is not None and not self._going:
            try:
                await self.ctx.ask(
                    f"{self.ctx.node}/transfer", message, deadline_s=ASK_DEADLINE_S, expect=Done
                )
                return
            except AskFailed as problem:
                if str(problem) != trouble:
                    trouble = str(problem)
                    self.ctx.log.info("could not notify the transfer agent yet: %s", problem)
                await asyncio.sleep(AGAIN_S)

    @handles(StopNode, lane=Lane.SYSTEM)
    async def stop(self, message: StopNode) -> None:
        self._go_once()

    def _on(self) -> str:
        return ", ".join(self._children.names()) or "its children"

    def _go_once(self) -> None:
        if not self._going:
            self._going = True
            self._departure.over()
            self._state = "draining"
            self.ctx.background(self._go(), "stop")

    async def _go(self) -> None:
        async with self.ctx.wait(
            "its children to stop", on=self._on(), deadline_s=CHILDREN_LATE_S, go_on=True
        ):
            await self._children.stop()
        self._state = "leaving"
        try:
            await self._hello(GOODBYE_DEADLINE_S)
        except AskFailed as problem:
            self.ctx.log.info("could not notify the head before leaving: %s", problem)
        await self._departure.acknowledge()  # last: the cloud may end this host upon it
        self._leave(OK, "left in order")

    # -- children --

    @handles(KillChild, lane=Lane.SYSTEM)
    async def kill_child(self, message: KillChild) -> None:
        try:
            number = Signals(message.signal)
        except ValueError:
            raise Refused(f"{message.signal} is no signal of this system") from None
        pid = self._children.signal(message.child, number)
        if pid is None:
            raise Refused(
                f"{self.ctx.node} runs no process {message.child!r}; it has "
                f"{', '.join(self._children.names()) or 'none'}"
            )
        self.ctx.log.warning("%s to %s (pid %d) on request", number.name, message.child, pid)

    def summary(self) -> dict[str, str | int | float]:
        job = self._children.job
        return {
            "role": self._role,
            "state": self._state,
            "head": "connected" if self._connected else " ".join(["not reached:", *self._troubles[-1:]]),
            "job": job.run_id if job is not None else "-",
            **({"lacks": self._lacks} if self._lacks else {}),
            "cores": self._inventory.cores,
            "memory_bytes": self._inventory.memory_bytes,
            "gpus": ", ".join(self._inventory.gpus) or "none",
            **self._keys(),
        }

    def _keys(self) -> dict[str, str | int | float]:
        """The state of the key directory's list, and the time since its last change."""
        if self.ctx.network.key_state is None:
            return {}
        state = self.ctx.network.key_state()
        return {
            "keys_trusted": state.trusted,
            "keys_changes": state.reloads,
            "keys_changed_ago_s": round(self.ctx.now() - state.reloaded_s, 1),
            "keys_problem": state.problem,
        }
