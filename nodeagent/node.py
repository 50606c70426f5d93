"""Process of a node agent: what it opens and closes, and in which order.

Owns the tree of the process (the head's has the registry, the Scheduler and the Provider beside the
NodeAgent) and the ordered end: hosts that it started first, then its children, then itself.
"""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Literal

from gleaner.actors.cluster.local_hosts import Join
from gleaner.actors.cluster.provider import LocalProvider
from gleaner.actors.cluster.scheduler import Scheduler
from gleaner.actors.names import PROVIDER, SCHEDULER
from gleaner.actors.protocol.cluster import JobEnded, PreemptionNotice, StopNode
from gleaner.nodeagent.agent import NodeAgent
from gleaner.nodeagent.children import Children
from gleaner.nodeagent.cluster_view import ClusterView
from gleaner.nodeagent.defaults import GRACE_S, MAY_LEAVE
from gleaner.nodeagent.departure import Orders
from gleaner.nodeagent.exit_codes import CUT_SHORT, FAILED, OK, CannotRun, as_cannot_run
from gleaner.nodeagent.files import AgentFile
from gleaner.nodeagent.host import LEASE_S, ProcessLocation
from gleaner.nodeagent.host_services import Control, FleetHosts, HostServices
from gleaner.nodeagent.leadership import leadership
from gleaner.nodeagent.metrics_server import MetricsServer, Seen, look
from gleaner.nodeagent.notices.cloud import FindCloud
from gleaner.nodeagent.restarts import RestartReporter
from gleaner.nodeagent.service_manager import READY, STOPPING, SignsOfLife
from gleaner.nodeagent.shutdown import Shutdown
from gleaner.nodeagent.system import open_system
from gleaner.supervisor import (
    ActorSystem,
    AskFailed,
    ChildSpec,
    Done,
    Registry,
    Restarted,
    Supervisor,
    WaitTimeout,
    child,
    one_for_one,
)

HEARD_S = 10.0  # for the Scheduler to take the end of a job, which is reported again every HEARD_AGAIN_S
HEARD_AGAIN_S = 0.5
AFTER_DRAIN_S = 15.0  # of that, for stopping the children, at most half of it; the rest is for handing over

log = logging.getLogger("nodeagent")


@dataclass(frozen=True, slots=True)
class Options:
    """Start options of a node agent. `local_fleet`: the head starts the other hosts itself, as processes.
    `metrics`: host and port at which the host's metrics are served, None: they are not. Of a head whose
    journals are in a database: `lease_s`, and whether it waits as a `standby` while another head is active.
    `control`: whether a head answers commands of this host on a socket in its state directory. `gateway`:
    HOST:PORT of the head's gateway, in place of the job's own `gateway.listen`. `grace_s`: time between a
    signal and the SIGKILL that follows it. `find_cloud`: finds the cloud whose notices are followed.
    """

    location: ProcessLocation
    role: str
    local_fleet: bool = False
    control: bool = False
    metrics: tuple[str, int] | None = None
    lease_s: float = LEASE_S
    standby: bool = False
    gateway: str = ""
    grace_s: float = GRACE_S
    find_cloud: FindCloud | None = None


async def run_node(options: Options, stop: Shutdown, services: HostServices) -> int:
    """Run the node agent on `services` until it leaves by itself or `stop` is set. The exit code.

    Raises CannotRun, BadKeys, RefusedToListen, CannotListen, JournalError.
    """
    state_dir = options.location.state_dir
    services.prepare(state_dir)
    lock = services.hold(state_dir)
    stop.at_once(lock.release)
    stop.at_once(lambda: services.withdraw_agent(state_dir))
    signs: SignsOfLife | None = None
    try:
        services.open_log(options.location)
        signs = SignsOfLife(services.notify, services.watchdog_s())
        services.notify(READY)
        services.free_left_memory()
        async with leadership(
            options.location, standby=options.standby, lease_s=options.lease_s, stop=stop, services=services
        ) as location:
            if location is None:
                return OK  # stopped while it was a standby
            async with open_system(location, services=services) as system:
                node = _Node(replace(options, location=location), system, stop, services)
                return await node.run()
    finally:
        if signs is not None:
            signs.close()
        lock.release()


class _Node:
    """One run of a node agent."""

    def __init__(self, options: Options, system: ActorSystem, stop: Shutdown, services: HostServices) -> None:
        self._system = system
        self._stop = stop
        self._services = services
        self._role = options.role
        self._grace_s = options.grace_s
        self._find_cloud = options.find_cloud
        self._control: Control | None = None
        self._wants_control = options.control
        self._metrics: MetricsServer | None = None
        if options.metrics is not None:
            self._metrics = MetricsServer(options.metrics, self._seen)
        self._end: tuple[int, str] | None = None
        self._left = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()
        location = options.location
        if location.head is None:
            location = replace(location, head=system.wire.local)
        self._location = location
        assert location.head is not None
        self._reporter = RestartReporter(system)
        self._orders = Orders()
        self._children = Children(system, location, options.role, services, self._gave_up, options.gateway)
        stop.at_once(self._children.forget_memory)
        self._hosts: FleetHosts | None = None
        if options.local_fleet:
            join = Join(location.head, location.interface, location.keys, location.bulk)
            self._hosts = services.hosts(system, join, self._restarted)
            stop.at_once(self._forget_hosts)
        self._tree = Supervisor(
            system,
            one_for_one(*self._actors(), name=f"{location.node}/actors"),
            on_failure=self._failed,
            on_restart=self._restarted,
        )

    async def run(self) -> int:
        """Run until the end; close in order."""
        stopping = asyncio.get_running_loop().create_task(self._stop.wait())
        if (prepared := self._system.machine.prepared()) is not None:
            await self._wait_for(prepared, stopping)
        starting = asyncio.get_running_loop().create_task(self._tree.start())
        try:
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                if self._wants_control:
                    view = ClusterView(self._system, [self._system.wire.local])
                    self._control = await self._services.open_control(self._location.state_dir, view)
                self._publish()
            await stopping
        finally:
            stopping.cancel()
        self._services.withdraw_agent(self._location.state_dir)
        self._services.notify(STOPPING)
        try:
            waits = self._system.waits
            async with waits.waiting("node agent", "its ordered end", self._agent_name, self._grace_s):
                await self._close()
        except WaitTimeout:
            self._stop.clean_up()
            raise CannotRun(
                CUT_SHORT, f"the ordered end took more than {self._grace_s:.0f} s; ended without order"
            ) from None
        code, reason = self._end or (OK, "stopped in order")
        if code != OK:
            raise CannotRun(code, reason)
        log.info("%s", reason)
        return code

    async def _wait_for(
        self, prepared: Coroutine[Any, Any, None], stopping: "asyncio.Task[Literal[True]]"
    ) -> None:
        """Wait until processes start fast, before a job can arrive, or until this one is to stop."""
        preparing = asyncio.get_running_loop().create_task(prepared)
        await asyncio.wait([preparing, stopping], return_when=asyncio.FIRST_COMPLETED)
        preparing.cancel()

    def _publish(self) -> None:
        location, local = self._location, self._system.wire.local
        self._services.publish_agent(
            location.state_dir,
            AgentFile(
                node=location.node,
                role=self._role,
                endpoint=local.endpoint,
                public_key=local.public_key,
                pid=self._system.state().pid,
                keys=str(location.keys.absolute()) if location.keys is not None else "",
                bulk=location.bulk,
                metrics=self._metrics.url if self._metrics is not None else "",
            ),
        )
        log.info("node agent of %s (%s) listens at %s", location.node, self._role, local.endpoint)

    async def _seen(self) -> Seen:
        """The processes of this host, for its metrics."""
        services, state_dir, children = self._services, self._location.state_dir, self._children.processes()
        return await look(
            self._system,
            {kind: services.find_process(state_dir, kind, pid) for kind, pid in children.items()},
        )

    async def _close(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._metrics is not None:
            await self._metrics.close()
        if self._hosts is not None:
            await self._tree.remove(PROVIDER)  # or it would replace the hosts that leave
            await self._hosts.stop()
            self._forget_hosts()
        agent = self._system.cell(self._agent_name)
        if self._end is None and agent is not None and agent.ready:
            # For a host that may vanish, a signal is its notice; an order to leave is a message.
            notice = self._stop.signal and self._role in MAY_LEAVE
            drain_s = max(self._grace_s / 2, self._grace_s - AFTER_DRAIN_S)
            order = PreemptionNotice(deadline_s=drain_s) if notice else StopNode()
            try:
                await self._system.ask(self._agent_name, order, deadline_s=self._grace_s, expect=Done)
                await self._left.wait()
            except AskFailed as problem:
                log.warning("could not stop the agent in order: %s", problem)
        await self._children.stop()
        # Again: a child that was starting may have written its address.
        self._services.withdraw_agent(self._location.state_dir)
        await self._tree.stop()
        self._reporter.close()

    def _forget_hosts(self) -> None:
        """Forget the hosts that this agent started: their memory, and the files with their addresses."""
        assert self._hosts is not None
        self._hosts.forget_memory()
        for state_dir in self._hosts.state_dirs():
            self._services.forget_agent(state_dir)

    def _failed(self, problem: Exception) -> None:
        """A supervisor of this process gave up."""
        known = as_cannot_run(problem) or CannotRun(FAILED, str(problem))
        self._leave(known.code, str(known))

    def _restarted(self, restarted: Restarted) -> None:
        if self._children.job is not None:
            self._reporter(restarted)
        else:  # no controller writes a history
            log.warning("restart %d of %s: %s", restarted.restarts, restarted.name, restarted.cause)

    def _leave(self, code: int, reason: str) -> None:
        """End the process; the first reason counts."""
        if self._end is None:
            self._end = (code, reason)
        self._left.set()
        self._stop.set()

    def _gave_up(self, problem: Exception) -> None:
        """The children failed too often, or could not start. The head's children are the job itself. Another
        host fails as a whole, and its provider decides what follows."""
        if self._role != "head":
            self._failed(problem)
            return
        task = asyncio.get_running_loop().create_task(self._job_failed(str(problem)))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _job_failed(self, reason: str) -> None:
        """Report until the Scheduler has recorded it: nothing of the job runs any more, and no other process
        reports that. The Scheduler may be restarting, or wait for space to write it down."""
        ended = JobEnded(ok=False, reason=reason)
        waits = self._system.waits
        async with waits.waiting(
            self._agent_name, "the scheduler to record the job's end", SCHEDULER, HEARD_S, go_on=True
        ):
            while True:
                try:
                    await self._system.ask(SCHEDULER, ended, deadline_s=HEARD_S, expect=Done)
                    return
                except AskFailed as problem:
                    log.warning("could not report the end of the job yet: %s", problem)
                    await asyncio.sleep(HEARD_AGAIN_S)

    def _actors(self) -> list[ChildSpec]:
        boot = self._services.wall_ms()
        agent = child(self._agent_name, self._agent)
        if self._role != "head":
            return [agent, *self._watcher()]
        return [
            child("registry", lambda: Registry(lambda: self._system.limits.lease_s)),
            child(PROVIDER, lambda: LocalProvider(self._hosts, boot, self._services.adapters.trace)),
            child(SCHEDULER, lambda: Scheduler(boot)),
            agent,
        ]

    def _watcher(self) -> list[ChildSpec]:
        """The watcher of a host that a cloud may preempt, if the options have a cloud to ask."""
        find = self._find_cloud
        if find is None or self._role not in MAY_LEAVE:
            return []
        from gleaner.nodeagent.notices.watcher import NoticeWatcher

        return [child(f"{self._location.node}/notices", lambda: NoticeWatcher(find))]

    def _agent(self) -> NodeAgent:
        return NodeAgent(
            self._role,
            self._services.adapters.inventory(),
            self._children,
            self._orders,
            self._leave,
            self._say,
        )

    @property
    def _agent_name(self) -> str:
        return f"{self._location.node}/agent"

    def _say(self, text: str) -> None:
        self._services.say(f"nodeagent {self._location.node}: {text}")
