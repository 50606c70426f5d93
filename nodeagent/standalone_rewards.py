"""Standalone reward service: `rlctl reward serve`, which scores without a job, in one process tree.

Owns the order: the tree (RewardProxy with its worker processes, its planner, RewardService with its HTTP
server), and its ordered end. There is no head and no trainer: problems come with the requests. Where reward
hosts may join, the tree has a head's membership too (`reward_service_hosts`). It keeps no state: a client
repeats what had no answer.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from gleaner.actors.cluster.local_hosts import Join
from gleaner.actors.gateway.gateway import HttpEntry
from gleaner.actors.names import REWARD, REWARD_SERVICE
from gleaner.actors.protocol.cluster import JobSpec
from gleaner.actors.reward import guarantees
from gleaner.actors.reward.assignment.jobs import JobLimits
from gleaner.actors.reward.proxy import RewardProxy, text_worker
from gleaner.actors.reward.scoring import ScorerUnusable, StartWorker, WorkerDied, WorkerHung
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.stages import Pipelines
from gleaner.actors.reward.text_tasks import text_tasks
from gleaner.actors.reward_service.asking import Scoring
from gleaner.actors.reward_service.service import MakeEntry, RewardService
from gleaner.configs.schema import Config, Jobs
from gleaner.nodeagent import reward_discovery
from gleaner.nodeagent.exit_codes import FAILED, OK, USAGE, CannotRun, as_cannot_run
from gleaner.nodeagent.host import LOOPBACK, Bounds, ProcessLocation
from gleaner.nodeagent.host_services import HostServices
from gleaner.nodeagent.reward_http import server_of
from gleaner.nodeagent.reward_service_hosts import HostOptions, job_of, local_hosts, membership
from gleaner.nodeagent.reward_service_planner import planner
from gleaner.nodeagent.shutdown import Shutdown
from gleaner.nodeagent.system import open_system
from gleaner.supervisor import (
    ActorSystem,
    ChildSpec,
    Intensity,
    Supervisor,
    SupervisorFailed,
    child,
    one_for_one,
)
from gleaner.transport.wire import Peer

STOP_S = 5.0

log = logging.getLogger("nodeagent")


@dataclass(frozen=True, slots=True)
class RewardServiceOptions:
    """Options of `run_reward_service`. config: settings; `gateway.listen` is the address that it serves.
    announce: called with its URL, the names of its tasks and the address that hosts join, each time that it
    listens. hosts: that score beside it; None: there are none, and none can join."""

    location: ProcessLocation
    config: Config
    announce: Callable[[str, list[str], Peer | None], None]
    hosts: HostOptions | None = None


async def run_reward_service(options: RewardServiceOptions, stop: Shutdown, services: HostServices) -> int:
    """Serve until `stop`. The exit code.

    Raises CannotRun, CannotListen, BadTask.
    """
    state_dir = options.location.state_dir
    services.prepare(state_dir)
    lock = services.hold(state_dir)
    stop.at_once(lock.release)
    stop.at_once(reward_discovery.withdraw)
    try:
        services.open_log(options.location)
        await _try_worker(options.config, services)
        return await _serve(options, stop, services)
    finally:
        reward_discovery.withdraw()
        lock.release()


async def _try_worker(config: Config, services: HostServices) -> None:
    """Start a worker and end it: settings that none can start with are found before the service listens.
    Raises CannotRun."""
    try:
        worker = await services.adapters.start_scorer(text_worker(RewardSettings.of(config)))
    except ScorerUnusable as problem:
        raise CannotRun(USAGE, f"no reward worker can be used: {problem}") from problem
    except (WorkerDied, WorkerHung) as problem:
        raise CannotRun(FAILED, f"no reward worker could be started: {problem}") from problem
    await worker.kill()


def _problem(config: Config, hosts: HostOptions | None, cores: int) -> str:
    """Why there are too few workers for these settings, "" where there are not."""
    pipelines = Pipelines(config.task, config.reward)
    local = hosts.local if hosts is not None else 0
    others_join = hosts is not None and hosts.listen != LOOPBACK
    return pipelines.problem() or guarantees.problem(
        pipelines, config.reward, None if others_join else local, cores
    )


async def _serve(options: RewardServiceOptions, stop: Shutdown, services: HostServices) -> int:
    config = options.config
    if problem := _problem(config, options.hosts, services.adapters.inventory().cores):
        raise CannotRun(USAGE, problem)
    tasks = text_tasks(config)
    urls: list[str] = []
    failures: list[Exception] = []
    joined: Peer | None = None

    def failed(problem: Exception) -> None:
        failures.append(problem)
        stop.set()

    def entry(scoring: Scoring) -> HttpEntry:
        """At the same port whenever it is opened again, were it any free one at first."""
        listen = urls[0].removeprefix("http://") if urls else config.gateway.listen
        own = msgspec.structs.replace(config.gateway, listen=listen)
        return _Announced(
            server_of(own, tasks)(scoring), urls, lambda url: options.announce(url, tasks.names, joined)
        )

    location = _location(options)
    async with open_system(location, Bounds.of(config), services) as system:
        boot = services.wall_ms()
        job = job_of(config, system.wire.local)
        if options.hosts is not None:
            joined = system.wire.local
        tree = Supervisor(
            system,
            one_for_one(
                *(membership(system, job, boot, services.adapters) if joined is not None else ()),
                *planner(system, job, config, location, services, registry=joined is not None),
                *scoring(config, services.adapters.start_scorer, entry),
                name="reward-service",
                intensity=Intensity(restarts=config.fleet.restarts, within_s=config.fleet.restarts_within_s),
            ),
            on_failure=failed,
        )
        await tree.start()
        hosts = _hosts(system, job, options, services)
        starting = asyncio.ensure_future(_started(hosts, services))
        try:
            await stop.wait()
        finally:
            hosts.halt()  # those that are just starting are not waited for
            await starting
            await hosts.stop()
            await tree.stop()
    if failures:
        raise as_cannot_run(failures[0]) or CannotRun(FAILED, str(failures[0]))
    log.info("stopped in order")
    return OK


def scoring(config: Config, start_scorer: StartWorker, entry: MakeEntry) -> tuple[ChildSpec, ChildSpec]:
    """The proxy, which scores texts, and the service in front of it."""
    settings = RewardSettings.of(config)
    return (
        child(
            REWARD,
            lambda: RewardProxy(
                settings, "", start_scorer, text_worker(settings), limits_of(config.reward.jobs)
            ),
            shutdown_s=STOP_S,
        ),
        child(REWARD_SERVICE, lambda: RewardService(entry, config.gateway.deadline_s), shutdown_s=STOP_S),
    )


def _location(options: RewardServiceOptions) -> ProcessLocation:
    if options.hosts is None:
        return options.location
    return replace(options.location, listen=options.hosts.listen, keys=options.hosts.keys)


def _hosts(
    system: ActorSystem, job: JobSpec, options: RewardServiceOptions, services: HostServices
) -> Supervisor:
    """The hosts that the service starts. If they end too often they are given up, and the service goes on
    with its own workers and the hosts that join it."""
    location, count = _location(options), options.hosts.local if options.hosts is not None else 0

    join = Join(system.wire.local, location.interface, location.keys)
    return Supervisor(
        system,
        local_hosts(job, join, location.state_dir / "nodes", count),
        on_failure=partial(_gave_up, services),
    )


async def _started(hosts: Supervisor, services: HostServices) -> None:
    try:
        await hosts.start()
    except SupervisorFailed as problem:
        _gave_up(services, problem)


def _gave_up(services: HostServices, problem: Exception) -> None:
    log.error("the hosts of this service are given up: %s", problem)
    services.say(f"the hosts of this service are given up: {problem}")


def limits_of(jobs: Jobs) -> JobLimits:
    """The limits of each job that shares the service."""
    return JobLimits(**msgspec.structs.asdict(jobs))


class _Announced:
    """An entry that announces its URL when it listens there."""

    def __init__(self, entry: HttpEntry, urls: list[str], announce: Callable[[str], None]) -> None:
        self._entry, self._urls, self._announce = entry, urls, announce

    async def start(self) -> str:
        url = await self._entry.start()
        self._urls[:] = [url]
        try:
            reward_discovery.publish(url)
        except OSError as problem:  # a home that cannot be written
            log.warning("jobs do not find this service by `cluster`, only by its URL: %s", problem)
        self._announce(url)
        return url

    async def close(self) -> None:
        await self._entry.close()
