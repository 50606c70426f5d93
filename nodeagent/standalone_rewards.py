"""Standalone reward service: `rlctl reward serve`, which scores without a job, in one process tree.

Owns the order: the tree (RewardProxy with its worker processes, RewardService with its HTTP server), and its
ordered end. There is no head and no trainer: problems come with the requests. It keeps no state: a client
repeats what had no answer.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gleaner.actors.gateway.gateway import HttpEntry
from gleaner.actors.names import REWARD, REWARD_SERVICE
from gleaner.actors.reward.assignment.jobs import JobLimits
from gleaner.actors.reward.proxy import RewardProxy, settings_of_task
from gleaner.actors.reward.scoring import ScorerUnusable, WorkerDied, WorkerHung, WorkerSpec
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.stages import Pipelines
from gleaner.actors.reward.text_tasks import SCORER, text_tasks
from gleaner.actors.reward_service.asking import Scoring
from gleaner.actors.reward_service.service import RewardService
from gleaner.configs.schema import Config, Jobs
from gleaner.nodeagent import reward_discovery
from gleaner.nodeagent.exit_codes import FAILED, OK, USAGE, CannotRun, as_cannot_run
from gleaner.nodeagent.host import Bounds, ProcessLocation
from gleaner.nodeagent.host_services import HostServices
from gleaner.nodeagent.reward_http import server_of
from gleaner.nodeagent.shutdown import Shutdown
from gleaner.nodeagent.system import open_system
from gleaner.supervisor import Intensity, Supervisor, child, one_for_one

STOP_S = 5.0

log = logging.getLogger("nodeagent")


@dataclass(frozen=True, slots=True)
class RewardServiceOptions:
    """Options of `run_reward_service`. config: settings; `gateway.listen` is the address that it serves.
    announce: called with its URL and the names of its tasks, each time that it listens."""

    location: ProcessLocation
    config: Config
    announce: Callable[[str, list[str]], None]


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


def _scorer(config: Config) -> WorkerSpec:
    return WorkerSpec(scorer=SCORER, config={"settings": settings_of_task(RewardSettings.of(config))})


async def _try_worker(config: Config, services: HostServices) -> None:
    """Start a worker and end it: settings that none can start with are found before the service listens.
    Raises CannotRun."""
    try:
        worker = await services.adapters.start_scorer(_scorer(config))
    except ScorerUnusable as problem:
        raise CannotRun(USAGE, f"no reward worker can be used: {problem}") from problem
    except (WorkerDied, WorkerHung) as problem:
        raise CannotRun(FAILED, f"no reward worker could be started: {problem}") from problem
    await worker.kill()


async def _serve(options: RewardServiceOptions, stop: Shutdown, services: HostServices) -> int:
    config = options.config
    settings = RewardSettings.of(config)
    if problem := Pipelines(config.task, config.reward).problem():
        raise CannotRun(USAGE, problem)
    tasks = text_tasks(config)
    urls: list[str] = []
    failures: list[Exception] = []

    def failed(problem: Exception) -> None:
        failures.append(problem)
        stop.set()

    def entry(scoring: Scoring) -> HttpEntry:
        """At the same port whenever it is opened again, were it any free one at first."""
        listen = urls[0].removeprefix("http://") if urls else config.gateway.listen
        own = msgspec.structs.replace(config.gateway, listen=listen)
        return _Announced(
            server_of(own, tasks)(scoring), urls, lambda url: options.announce(url, tasks.names)
        )

    async with open_system(options.location, Bounds.of(config), services) as system:
        tree = Supervisor(
            system,
            one_for_one(
                child(
                    REWARD,
                    lambda: RewardProxy(
                        settings,
                        "",
                        services.adapters.start_scorer,
                        _scorer(config),
                        limits_of(config.reward.jobs),
                    ),
                    shutdown_s=STOP_S,
                ),
                child(
                    REWARD_SERVICE, lambda: RewardService(entry, config.gateway.deadline_s), shutdown_s=STOP_S
                ),
                name="reward-service",
                intensity=Intensity(restarts=config.fleet.restarts, within_s=config.fleet.restarts_within_s),
            ),
            on_failure=failed,
        )
        await tree.start()
        try:
            await stop.wait()
        finally:
            await tree.stop()
    if failures:
        raise as_cannot_run(failures[0]) or CannotRun(FAILED, str(failures[0]))
    log.info("stopped in order")
    return OK


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
