"""A shared reward service on a simulated host: production's proxy, service and HTTP server in one process.

Owns what it is made of here: its settings, which follow from the job's, the simulated network and clock, ids
from the seed, modelled verifiers. Its jobs are simulated too: problems and texts are of
`models.scored_texts`.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from gleaner.actors.gateway.access import ANY_HOST, Access
from gleaner.actors.gateway.gateway import HttpEntry
from gleaner.actors.gateway.server import Guard, WebServer, guarded
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward_service.asking import Scoring
from gleaner.actors.reward_service.refusals import REFUSED, refusal
from gleaner.actors.reward_service.routes import ROUTES, ServiceContext
from gleaner.configs.schema import Config, Share
from gleaner.nodeagent.host import Bounds, ProcessLocation
from gleaner.nodeagent.reward_http import RewardHttp
from gleaner.nodeagent.standalone_rewards import scoring
from gleaner.nodeagent.system import open_system
from gleaner.sim.host_services import SimHostServices
from gleaner.sim.hosts import SimProcess
from gleaner.sim.http_listening import HttpListening
from gleaner.sim.network import SimNet
from gleaner.sim.run_setup import SCORES, SCORES_PORT, SERVICE
from gleaner.supervisor import Intensity, Supervisor, one_for_one

WORKERS = 1
MOST_QUEUED = 12
"""Items of the job that may wait; more are answered 429, as a service with too many jobs answers."""

SICK_S = 2.0
"""For so long a job is refused whose items end workers: an outage that its calls bear."""


class _Tasks:
    """The tasks of a job; every problem of it can be scored."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def check(self, task: str, entry: Entry) -> str:
        """See `KnownTasks`."""
        return ""


def settings_of(config: Config) -> Config:
    """Of the service, where the job has these."""
    reward = replace(
        config.reward,
        share=Share(),
        workers=WORKERS,
        jobs=replace(config.reward.jobs, max_queued=MOST_QUEUED, sick_s=SICK_S),
        planner=type(config.reward.planner)(),
    )
    listen = f"0.0.0.0:{SCORES_PORT}"
    return replace(config, reward=reward, gateway=replace(config.gateway, listen=listen))


async def serve(
    process: SimProcess, config: Config, net: SimNet, services: SimHostServices, state_dir: Path
) -> int:
    """Score until the order to stop; the exit code. config: the job's."""
    own = settings_of(config)
    location = ProcessLocation(SCORES, SERVICE, state_dir, f"tcp://{process.host.address}:0")
    failures: list[Exception] = []

    def failed(problem: Exception) -> None:
        failures.append(problem)
        process.stop_order.set()

    async with open_system(location, Bounds.of(own), services) as system:
        tree = Supervisor(
            system,
            one_for_one(
                *scoring(own, services.adapters.start_scorer, partial(_entry, process, own, net)),
                name="reward-service",
                intensity=Intensity(restarts=own.fleet.restarts, within_s=own.fleet.restarts_within_s),
            ),
            on_failure=failed,
        )
        await tree.start()
        try:
            await process.stop_order.wait()
        finally:
            await tree.stop()
    if failures:
        raise failures[0]
    return 0


def _entry(process: SimProcess, config: Config, net: SimNet, scores: Scoring) -> HttpEntry:
    host = process.host
    rng = random.Random(f"{config.job.seed}/{SERVICE}/{process.pid}")

    def wall_s() -> float:
        return host.loop.wall_ms(host.name) / 1000

    desk = ServiceContext(
        scores,
        _Tasks([task.name for task in config.task]),
        config.gateway,
        spawn=asyncio.ensure_future,
        wall_s=wall_s,
        new_id=lambda: f"{rng.getrandbits(128):032x}",
        missing=lambda language: "no program runs on a simulated host",
    )
    handlers = [(partial(route.does, desk), route) for route in ROUTES]
    access = Access(hosts=[ANY_HOST], server="reward service")
    front = Guard(config.gateway, access, desk.figures, refusal, REFUSED)
    station = net.station(process.loop, host.name, process.name)
    server = WebServer(guarded(handlers, front), listening=HttpListening(net, station, wall_s))
    return RewardHttp(server, "0.0.0.0", SCORES_PORT, desk)
