"""`Scheduler`: the job, its hosts, and Algorithm 1 between its steps.

Owns the job's state, the membership of hosts and the seeding state; all three survive its own death. Only the
Scheduler reports hosts to the controller (`host_events`). It detects joined, left and killed hosts itself (by
hello, goodbye and watch); node agents report notices and drains. It starts no process itself: node agents
request their part of the job, and the Provider gets the job's demand.
"""

import math

from msgspec import structs

from gleaner.actors.cluster.fleet_orders import FleetOrders
from gleaner.actors.cluster.host_events import HostEvents
from gleaner.actors.cluster.job import config_of
from gleaner.actors.cluster.membership import HEAD
from gleaner.actors.cluster.membership_journal import MembershipJournal
from gleaner.actors.cluster.plan_figures import Figures, learnt_tail, measured_tail, plan_figures
from gleaner.actors.cluster.planner import Planner, planner_of
from gleaner.actors.cluster.seeding import SeedingState
from gleaner.actors.cluster.width_planner import WidthPlanner, WidthState
from gleaner.actors.protocol.cluster import (
    HostsUp,
    JobEnded,
    JobIs,
    JobSpec,
    JobStatus,
    NodeHello,
    NodeSeen,
    NodeWork,
    Plan,
    PlanNext,
    PlanWidth,
    SayHello,
    SubmitJob,
    WhoIsUp,
    WidthPlanned,
)
from gleaner.configs.load import ConfigError
from gleaner.configs.schema import Config
from gleaner.supervisor import (
    Actor,
    Address,
    AskFailed,
    Deferred,
    Lane,
    Message,
    Refused,
    Terminated,
    handles,
)

SOON_S = 0.5  # between two hellos of a host that waits until the others have stopped an earlier job
LOOK_S = 0.5  # between two checks for silent hosts, at least
LOOKS = 10  # checks within the silence limit


class ClusterState(Message, frozen=True):
    """Journaled: the job and the plan of its next step. `done`: the run id of the last job that was done."""

    job: JobSpec | None = None
    state: str = "none"
    reason: str = ""
    planned_step: int = -1
    seeding: SeedingState | None = None
    widths: WidthState | None = None
    cause: str = ""
    done: str = ""


class LookForSilence(Message, frozen=True):
    """A timer message to itself."""


class Scheduler(Actor):
    """See the module docstring. `boot` identifies the life of the head's process. standing: the job of this
    cluster from its start, in the place of any other one: no host is ever without it. None: a client submits.
    """

    def __init__(self, boot: int, standing: JobSpec | None = None) -> None:
        self._boot = boot
        self._standing = standing
        self._now = ClusterState()
        self._between_s = -math.inf  # time of the newest plan after a step
        self._tail: Figures = {}  # of the step that was measured last; shown, and never planned with
        self._take_config(Config())

    async def on_start(self) -> None:
        self._membership = MembershipJournal(self.ctx, self._boot, self._report_later)
        self._members = self._membership.members
        self._events = HostEvents(self.ctx)
        self._orders = FleetOrders(self.ctx, self._fail)
        async for event in self.ctx.journal.replay():
            if isinstance(event, ClusterState):
                self._now = event
        await self._membership.replay()
        await self._take_standing()
        if self._now.job is not None:
            self._take_config(config_of(self._now.job))
            self._tail = learnt_tail(self._now.seeding)
            if self._now.state == "running":
                seeding = self._now.seeding
                n_prem = self._n_prem_of(seeding) if seeding is not None else None
                self._orders.resume(self._now.job, n_prem)
        self.ctx.background(self._events.run(), "news of hosts")
        self._look_later()

    # -- the job --

    async def _take_standing(self) -> None:
        """Before the first hello is answered: a host that got no job would stop what it runs."""
        if self._standing is None:
            return
        known = self._now.job.run_id if self._now.job is not None else ""
        if known != self._standing.run_id:
            await self._become(ClusterState(job=self._standing, state="running", done=known))
        elif self._now.state != "running":
            await self._become(structs.replace(self._now, state="running"))

    @handles(SubmitJob)
    async def submit(self, message: SubmitJob) -> JobIs:
        job = message.job
        known = self._now.job
        if known is not None and known.run_id == job.run_id and self._now.state in ("running", "done"):
            return self._job_is()
        if known is not None and self._now.state == "running":
            raise Refused(f"job {known.run_id} is running here: wait for its end or stop it first")
        try:
            config = config_of(job)
        except ConfigError as problem:
            raise Refused(str(problem)) from problem
        # First the fleet: a trace that cannot be replayed is refused before anything is accepted.
        try:
            await self._orders.start(job)
        except AskFailed as problem:
            raise Refused(f"no hosts for job {job.run_id}: {problem}") from problem
        self._take_config(config)
        again = known is not None and known.run_id == job.run_id
        self._tail = self._tail if again else {}
        await self._become(
            ClusterState(
                job=job,
                state="running",
                planned_step=self._now.planned_step if again else -1,
                seeding=self._now.seeding if again else None,
                widths=(self._now.widths if again else None) or self._widths.initial(),
                done=self._now.done,
            )
        )
        self._call_hosts()
        for node, member in self._members.by_name.items():
            if member.role != "head":
                joined = NodeSeen(node=node, role=member.role, event="joined", devices=member.devices)
                self._report_later([joined])
        return self._job_is()

    @handles(JobStatus)
    async def status(self, message: JobStatus) -> JobIs:
        return self._job_is()

    @handles(JobEnded)
    async def ended(self, message: JobEnded) -> None:
        now = self._now
        if now.state != "running":
            return  # the first end counts
        self.ctx.log.info("the job ended: %s", "done" if message.ok else message.reason)
        await self._become(
            ClusterState(
                job=now.job,
                state="done" if message.ok else "failed",
                reason=message.reason,
                cause=message.cause,
                planned_step=now.planned_step,
                seeding=now.seeding,
                widths=now.widths,
                done=now.job.run_id if message.ok and now.job is not None else now.done,
            )
        )
        self._events.clear()
        self._call_hosts()
        self._orders.stop()

    async def _fail(self, reason: str) -> None:
        await self.ended(JobEnded(ok=False, reason=reason))

    @handles(PlanNext)
    async def plan(self, message: PlanNext) -> Plan:
        """Algorithm 1 with the measurements of a step. The same step again gets the same plan."""
        now = self._now
        if now.job is None:
            raise Refused("there is no job to plan for")
        seeding = now.seeding or self._policy.initial(message.reserved_engines)
        planned_step, widths = now.planned_step, now.widths
        if message.times is not None and message.step > planned_step:
            seeding = await self.ctx.offload(self._policy.next, seeding, message.times)
            if widths is not None:
                widths = await self.ctx.offload(
                    self._widths.next, widths, seeding, message.times, message.step
                )
            planned_step = message.step
            self._tail = measured_tail(message.times)
        if (seeding, planned_step, widths) != (now.seeding, now.planned_step, now.widths):
            state = structs.replace(now, planned_step=planned_step, seeding=seeding, widths=widths)
            await self._become(state)
            if planned_step != now.planned_step:
                self._between_steps()
        n_prem = self._n_prem_of(seeding)
        self._orders.wish(n_prem)
        return Plan(
            t_seed_s=seeding.t_seed_s,
            stair_s=seeding.stair_s,
            n_prem=n_prem,
            predicted_s=seeding.predicted_s,
            tail_gain=seeding.tail_gain,
            width=widths.width if widths is not None else 0,
            tail_surplus=seeding.tail_surplus,
        )

    @handles(PlanWidth)
    async def plan_width(self, message: PlanWidth) -> WidthPlanned:
        """The width of a step before its plan, from what is measured by then; the rest of the plan waits for
        the step's end. A step that is planned already has its width."""
        now, times = self._now, message.times
        if now.job is None or now.widths is None:
            raise Refused("there is no job whose engines have widths")
        before = widths = now.widths
        if message.step > now.planned_step:
            seeding = now.seeding or self._policy.initial(times.reserved_engines)
            seeding = await self.ctx.offload(self._policy.next, seeding, times)
            widths = await self.ctx.offload(self._widths.early, before, seeding, times, message.step)
        if widths != before:
            await self._become(structs.replace(now, widths=widths))
            self._between_steps()
        changed, decided = widths.width != before.width, widths.step >= message.step
        return WidthPlanned(width=widths.width, changed=changed, decided=decided)

    def _between_steps(self) -> None:
        """No engine has requests now. Have hosts whose engines run at another width relaunch them."""
        widths = self._now.widths
        if widths is None:
            return
        self._between_s = self.ctx.turn_time()
        members = self._members.by_name.values()
        if any(member.width not in (0, widths.width) for member in members):
            self._call_hosts()

    def _n_prem_of(self, seeding: SeedingState) -> int:
        return self._n_prem_max if self._every_instance else seeding.n_prem

    def _take_config(self, config: Config) -> None:
        self._liveness = config.liveness
        self._every_instance, self._n_prem_max = config.ablation.every_instance, config.fleet.n_prem_max
        self._policy: Planner = planner_of(config)
        self._widths = WidthPlanner(config.engine)

    async def _become(self, state: ClusterState) -> None:
        await self.ctx.journal.snapshot(state)
        self._now = state

    def _job_is(self) -> JobIs:
        run_id = self._now.job.run_id if self._now.job is not None else ""
        waits_for = self.ctx.journal.refuses() if self._now.state == "running" else ""
        reason = self._now.reason or waits_for
        return JobIs(state=self._now.state, run_id=run_id, reason=reason, cause=self._now.cause)

    # -- hosts --

    @handles(NodeHello, lane=Lane.SYSTEM)
    async def hello(self, message: NodeHello) -> NodeWork | Deferred:
        known = self._members.by_name.get(message.node)
        events = self._members.hello(message, self.ctx.turn_time())
        member = self._members.by_name.get(message.node)
        if member is not None and (known is None or known.agent != member.agent):
            self.ctx.watch(member.agent)
        if not events and self._membership.is_saved(message.node):
            return self._work_of(message)
        deferred = Deferred()
        self._membership.changed(events, lambda: deferred.answer(self._work_of(message)))
        return deferred

    def _work_of(self, hello: NodeHello) -> NodeWork:
        node = hello.node
        job = self._now.job if self._now.state == "running" else None
        if job is not None and not self._members.free_for(node, job.run_id):
            return NodeWork(job=None, hello_s=min(SOON_S, self._liveness.hello_s), done=self._now.done)
        width = self._width_of(hello) if job is not None else 0
        return NodeWork(job=job, hello_s=self._liveness.hello_s, done=self._now.done, width=width)

    def _width_of(self, hello: NodeHello) -> int:
        """The width for its engine. A running one keeps its width in the middle of a step: a host that was
        not reached in time after a plan relaunches it after the next one."""
        widths = self._now.widths
        if widths is None or hello.role != "preemptible":
            return 0
        runs = hello.width > 0 and self._now.job is not None and hello.run_id == self._now.job.run_id
        late = self.ctx.turn_time() - self._between_s > self._liveness.dead_s
        return hello.width if runs and late else widths.width

    def _call_hosts(self) -> None:
        """Make every host send its hello now instead of at the next period."""
        agents = [member.agent for member in self._members.by_name.values()]
        self.ctx.background(self._call(agents), "call to hosts")

    async def _call(self, agents: list[Address]) -> None:
        for agent in agents:
            await self.ctx.tell(agent, SayHello())

    @handles(NodeSeen, lane=Lane.SYSTEM)
    async def reported(self, message: NodeSeen) -> None:
        """A node agent's own notice or drain."""
        self._report_later([message])

    @handles(WhoIsUp, lane=Lane.SYSTEM)
    async def list_hosts(self, message: WhoIsUp) -> HostsUp:
        members = self._members.by_name.items()
        return HostsUp(
            boot=self._boot,
            roles={node: member.role for node, member in members if member.role != HEAD},
            devices={node: member.devices for node, member in members if member.devices > 1},
        )

    def _look_later(self) -> None:
        self.ctx.after(max(LOOK_S, self._liveness.dead_s / LOOKS), LookForSilence())

    @handles(LookForSilence)
    async def look_for_silence(self, message: LookForSilence) -> None:
        self._look_later()
        self._membership.changed(self._members.silent(self.ctx.turn_time(), self._liveness.dead_s))

    async def on_terminated(self, event: Terminated) -> None:
        self._membership.changed(self._members.ended(event.name, event.incarnation, event.cause))

    def _report_later(self, events: list[NodeSeen]) -> None:
        if self._now.state == "running":
            self._events.add(events)

    def summary(self) -> dict[str, str | int | float]:
        return {
            "job": self._now.job.run_id if self._now.job is not None else "-",
            "state": self._now.state,
            "reserved": self._members.count("reserved"),
            "preemptible": self._members.count("preemptible"),
            **plan_figures(self._now.seeding, self._now.widths),
            **self._tail,
        }
