"""`LocalProvider`: fleet of a job on this machine, by trace and N_prem.

The trace gives the availability; N_prem is Algorithm 1's. Owns the trace's clock (journaled every second, so
it goes on after a resume) and carries out the decisions of `fleet.FleetPolicy`. It sends nothing to the
controller: the Scheduler detects joins and deaths of hosts by itself. A host is killed without a message. A
host with a notice gets one, may leave by itself, and is killed when its time is over. Without own hosts (they
join by themselves) it accepts every message and does nothing.
"""

from collections.abc import Callable
from typing import Protocol

from gleaner.actors.cluster.fleet import RESERVED, FleetAction, FleetPolicy, KillHost, NoticeHost, StartHost
from gleaner.actors.cluster.job import config_of
from gleaner.actors.names import SCHEDULER
from gleaner.actors.protocol.cluster import (
    JobEnded,
    JobSpec,
    PreemptionNotice,
    SetFleet,
    StartFleet,
    StartTrace,
    StopFleet,
)
from gleaner.configs.load import ConfigError
from gleaner.configs.trace import Availability, Trace, TraceError
from gleaner.supervisor import Actor, AskFailed, Done, Message, ProcessExit, Refused, handles

LOOK_S = 0.2  # granularity of the trace's clock
CALM_LOOK_S = 1.0  # without a trace: period in which ended hosts are started again
JOURNAL_S = 1.0  # a resumed run repeats at most this much of the trace
NOTICE_DEADLINE_S = 5.0  # for a host to accept its notice


class Hosts(Protocol):
    """Operations on real hosts for a provider (`local_hosts.LocalHosts`)."""

    def running(self) -> list[str]: ...
    async def keep_reserved(self, job: JobSpec, on_give_up: Callable[[str], None]) -> None: ...
    def take_ended(self) -> list[tuple[str, ProcessExit]]: ...
    def start(self, name: str, job: JobSpec) -> None: ...
    def kill(self, name: str) -> None: ...
    async def stop(self) -> None: ...


class FleetState(Message, frozen=True):
    """Journaled: the job, the time on its trace's clock, and whether the clock runs in this life of the
    head's process (`boot`)."""

    boot: int = 0
    job: JobSpec | None = None
    trace_s: float = 0.0
    ticking: bool = False
    n_prem: int | None = None


class LookAtFleet(Message, frozen=True):
    """A timer message to itself."""


class LocalProvider(Actor):
    """The provider of local hosts. `hosts` is None if hosts join by themselves; `boot` identifies the life of
    the head's process; `read_trace` gives the trace of a name, and raises TraceError."""

    def __init__(self, hosts: Hosts | None, boot: int, read_trace: Callable[[str], Trace]) -> None:
        self._hosts = hosts
        self._boot = boot
        self._read_trace = read_trace
        self._fleet: FleetPolicy | None = None
        self._job: JobSpec | None = None
        self._trace_s = 0.0
        self._ticking = False
        self._n_prem: int | None = None
        self._looked_s = 0.0
        self._journaled_s = 0.0

    async def on_start(self) -> None:
        state = FleetState()
        async for event in self.ctx.journal.replay():
            if isinstance(event, FleetState):
                state = event
        self._job, self._trace_s, self._n_prem = state.job, state.trace_s, state.n_prem
        self._looked_s = self.ctx.now()
        if state.job is not None and state.boot == self._boot:
            self._ticking = state.ticking
            await self._raise_fleet(state.job)
        self._look_again()

    @handles(StartFleet)
    async def start_fleet(self, message: StartFleet) -> None:
        job = message.job
        if self._hosts is None or (self._fleet is not None and self._job == job):
            return
        if self._fleet is not None:
            raise Refused(f"the hosts here belong to another job ({self._job.run_id if self._job else '?'})")
        if self._job is None or self._job.run_id != job.run_id:
            self._trace_s, self._n_prem = 0.0, None
        self._hosts.take_ended()  # ends of an earlier fleet's hosts do not concern this one
        try:
            await self._raise_fleet(job)
        except (ConfigError, TraceError, OSError) as problem:
            raise Refused(str(problem)) from problem
        self._job = job
        await self._journal()
        await self._carry_out()

    @handles(StartTrace)
    async def start_trace(self, message: StartTrace) -> None:
        self._ticking = True
        await self._journal()

    @handles(SetFleet)
    async def set_fleet(self, message: SetFleet) -> None:
        changed, self._n_prem = message.n_prem != self._n_prem, message.n_prem
        if self._fleet is not None:
            self._fleet.n_prem = message.n_prem
            await self._carry_out()
        if changed:  # another life would rent all hosts that the fleet allows
            await self._journal()

    @handles(StopFleet)
    async def stop_fleet(self, message: StopFleet) -> None:
        """The job is over. Its hosts stop in the background, as that may take long."""
        self._fleet, self._job, self._ticking = None, None, False
        self._trace_s, self._n_prem = 0.0, None
        await self._journal()
        if self._hosts is not None:
            self.ctx.background(self._hosts.stop(), "stop of the hosts")

    @handles(LookAtFleet)
    async def look(self, message: LookAtFleet) -> None:
        now_s = self.ctx.now()
        if self._ticking and self._fleet is not None:
            self._trace_s += now_s - self._looked_s
            if self._fleet.follows_trace and now_s - self._journaled_s >= JOURNAL_S:
                await self._journal()
        self._looked_s = now_s
        await self._carry_out()
        self._look_again()

    def _look_again(self) -> None:
        follows = self._fleet is not None and self._fleet.follows_trace
        self.ctx.after(LOOK_S if follows else CALM_LOOK_S, LookAtFleet())

    # -- carrying out --

    async def _raise_fleet(self, job: JobSpec) -> None:
        if self._hosts is None:
            return
        config = config_of(job)
        availability = None
        if config.fleet.trace:
            replayed = self._read_trace(config.fleet.trace)
            refuse_names(replayed)
            availability = Availability(replayed)
        self._fleet = FleetPolicy(
            availability,
            n_prem_max=config.fleet.n_prem_max,
            notice_s=config.fleet.notice_s,
            begin_s=self._trace_s,
            running=self._hosts.running(),
        )
        if self._n_prem is not None:
            self._fleet.n_prem = self._n_prem
        await self._hosts.keep_reserved(job, self._reserved_gave_up)

    async def _carry_out(self) -> None:
        if self._fleet is None or self._job is None or self._hosts is None:
            return
        now_s = self.ctx.now()
        for name, exit_ in self._hosts.take_ended():
            self.ctx.log.info("host ended: %s: %s", name, exit_.cause)
            self._fleet.exited(name, now_s, in_order=not exit_.abnormal)
        # A cloud may deliver hosts that were not requested.
        actions: list[FleetAction] = [*self._fleet.found(self._hosts.running(), now_s)]
        actions += self._fleet.advance(self._trace_s)
        actions += self._fleet.allocate(now_s)
        for action in actions:
            self.ctx.log.info("%s at %.1f s of the trace", action, self._trace_s)
            if isinstance(action, StartHost):
                try:
                    self._hosts.start(action.name, self._job)
                except OSError as problem:
                    self.ctx.log.error("host start failed: %s: %s", action.name, problem)
                    self._fleet.exited(action.name, now_s, in_order=False)
            elif isinstance(action, KillHost):
                self._hosts.kill(action.name)
            else:
                self.ctx.background(self._notice(action), f"notice to {action.name}")

    async def _notice(self, notice: NoticeHost) -> None:
        message = PreemptionNotice(deadline_s=notice.deadline_s)
        try:
            await self.ctx.ask(f"{notice.name}/agent", message, deadline_s=NOTICE_DEADLINE_S, expect=Done)
        except AskFailed as problem:  # it is killed at its deadline anyway
            self.ctx.log.warning("notice not delivered: host=%s: %s", notice.name, problem)

    def _reserved_gave_up(self, reason: str) -> None:
        self.ctx.background(self._fail(reason), "end of the job")

    async def _fail(self, reason: str) -> None:
        await self.ctx.tell(SCHEDULER, JobEnded(ok=False, reason=reason))

    async def _journal(self) -> None:
        self._journaled_s = self.ctx.now()
        await self.ctx.journal.snapshot(
            FleetState(
                boot=self._boot,
                job=self._job,
                trace_s=self._trace_s,
                ticking=self._ticking,
                n_prem=self._n_prem,
            )
        )

    def summary(self) -> dict[str, str | int | float]:
        if self._fleet is None:
            return {"fleet": "external" if self._hosts is None else "none"}
        return {
            "running": " ".join(self._fleet.running),
            "on_offer": len(self._fleet.on_offer),
            "n_prem": self._fleet.n_prem,
            "trace_s": round(self._trace_s, 1),
        }


def refuse_names(replayed: Trace) -> None:
    """A host's name is the name of its folder and of its actors. Raises TraceError for one that is taken."""
    taken = {event.instance for event in replayed.events} & {"head", RESERVED}
    if taken:
        raise TraceError(f"{replayed.name}: {min(taken)} is the name of another host; rename the instance")
