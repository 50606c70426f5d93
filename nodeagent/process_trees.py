"""Supervision trees of a host's processes: one small tree for each kind.

Owns the table from kind to tree. Imports an actor only in the process that runs it; `adapters` provides what
it uses.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.actors.cluster import job as places
from gleaner.actors.names import BALANCER, GATEWAY, MANAGER, PLANNER, REWARD, TRAINER
from gleaner.actors.protocol.cluster import JobSpec
from gleaner.configs.schema import Config
from gleaner.nodeagent.adapters import AdapterFactory
from gleaner.nodeagent.launch import USUAL, Launch
from gleaner.supervisor import Intensity, TreeSpec, child, one_for_all, one_for_one, rest_for_one

if TYPE_CHECKING:
    from gleaner.actors.reward.stage_pools import HostParts

STOP_S = 5.0  # an ordered stop of one actor; every one of them survives the kill that follows
NEVER = Intensity(restarts=0)
"""For processes of a gang: torch joins a group of ranks once a process, so they are restarted as a whole."""
RANK = re.compile(r"rank-([1-9]\d{0,3})")


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """Input of a tree: the job, its settings, the host, its fittings, the datacenter of the host, "" for no
    particular one, and how an engine is started."""

    job: JobSpec
    config: Config
    node: str
    adapters: AdapterFactory
    datacenter: str = ""
    launch: Launch = USUAL

    @property
    def intensity(self) -> Intensity:
        """When a supervisor on this host gives up."""
        fleet = self.config.fleet
        return Intensity(restarts=fleet.restarts, within_s=fleet.restarts_within_s)


def rollout(place: ProcessContext) -> TreeSpec:
    """The manager depends on the balancer that it asks, not the other way round."""
    from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
    from gleaner.actors.rollout.manager import RolloutManager
    from gleaner.actors.rollout.settings import ManagerSettings

    config = place.config
    return rest_for_one(
        child(
            BALANCER,
            lambda: LoadBalancer(
                config.rollout.max_pending, published=config.rollout.balancing == "published"
            ),
        ),
        child(MANAGER, lambda: RolloutManager(ManagerSettings.of(config)), shutdown_s=STOP_S),
        name="rollout",
        intensity=place.intensity,
    )


def gateway(place: ProcessContext) -> TreeSpec:
    """HTTP in front of the manager. It keeps no state: requests belong to the manager."""
    from gleaner.actors.gateway.gateway import Gateway

    job, config = place.job, place.config
    door = place.adapters.gateway_door(config, Path(job.model_dir), job.run_id)
    return one_for_one(
        child(GATEWAY, lambda: Gateway(config.gateway, door), shutdown_s=STOP_S),
        name="gateway",
        intensity=place.intensity,
    )


def reward(place: ProcessContext) -> TreeSpec:
    """The proxy; its worker processes are its own."""
    from gleaner.actors.reward.proxy import RewardProxy
    from gleaner.actors.reward.settings import RewardSettings

    start_worker = place.adapters.start_scorer
    return one_for_one(
        child(
            REWARD,
            lambda: RewardProxy(
                RewardSettings.of(place.config),
                place.job.model_dir,
                start_worker,
                parts=_reward_parts(place),
            ),
        ),
        name="reward",
        intensity=place.intensity,
    )


def _reward_parts(place: ProcessContext) -> "HostParts":
    """What the workers of a host are made with, beside their processes."""
    from gleaner.actors.reward.stage_pools import HostParts

    shared = bool(place.config.reward.share.with_)
    return HostParts(
        make_blobs=partial(place.adapters.blobs, places.blob_dir(place.job, place.node)),
        make_service=partial(place.adapters.reward_service, place.config) if shared else None,
    )


def reward_planner(place: ProcessContext) -> TreeSpec:
    """Plans reward workers, which takes up to seconds of a core at a time."""
    from gleaner.actors.reward.planner import RewardPlanner

    planner = place.config.reward.planner
    return one_for_one(
        child(PLANNER, lambda: RewardPlanner(planner.kind, planner.max_delay_s)),
        name="reward-planner",
        intensity=place.intensity,
    )


def reward_host(place: ProcessContext) -> TreeSpec:
    """The workers of a reward host; the proxy is elsewhere."""
    from gleaner.actors.reward.host import RewardHost
    from gleaner.actors.reward.proxy import text_worker, worker_spec
    from gleaner.actors.reward.settings import RewardSettings
    from gleaner.actors.reward.stage_pools import StageLimits, StagePools
    from gleaner.actors.reward.stages import Pipelines

    settings = RewardSettings.of(place.config)
    pipelines = Pipelines(settings.task, settings.reward)
    limits = StageLimits.of(
        settings.reward, pipelines, pipelines.host_workers(place.adapters.inventory().cores)
    )
    # A reward service has no model: its problems and responses are texts.
    spec = worker_spec(settings, place.job.model_dir) if place.job.model_dir else text_worker(settings)
    start_worker = place.adapters.start_scorer
    return one_for_one(
        child(
            f"{place.node}/reward",
            lambda: RewardHost(StagePools(limits, spec, start_worker, _reward_parts(place))),
            shutdown_s=STOP_S,
        ),
        name="reward-host",
        intensity=place.intensity,
    )


def transfer(place: ProcessContext) -> TreeSpec:
    """The host's TransferAgent."""
    from gleaner.actors.weights.agent import TransferAgent
    from gleaner.actors.weights.settings import TransferSettings

    adapters, store_dir = place.adapters, places.store_dir(place.job, place.node)
    return one_for_one(
        child(
            f"{place.node}/transfer",
            lambda: TransferAgent(
                adapters.image_store(store_dir),
                TransferSettings.of(place.config),
                place.datacenter,
                lambda: adapters.disk_versions(place.config, Path(place.job.model_dir), place.job.run_id),
                adapters.delta_threads(place.config),
            ),
        ),
        name="transfer",
        intensity=place.intensity,
    )


def trainer(place: ProcessContext) -> TreeSpec:
    """The trainer and the worker that rolls out on its device: neither runs without the other."""
    from gleaner.actors.engine.worker.settings import WorkerSettings
    from gleaner.actors.engine.worker.worker import RolloutWorker
    from gleaner.actors.training.settings import TrainerSettings
    from gleaner.actors.training.trainer import Trainer

    job, config, node, adapters = place.job, place.config, place.node, place.adapters
    return one_for_all(
        child(
            f"{node}/engine",
            lambda: RolloutWorker(
                WorkerSettings.of(config),
                node,
                "reserved",
                adapters.engine_host(config, "reserved"),
                adapters.control_page(places.store_dir(job, node), f"{node}/engine"),
            ),
        ),
        child(
            TRAINER,
            lambda: Trainer(
                TrainerSettings.of(config),
                node,
                adapters.trainer_work(
                    config,
                    Path(job.model_dir),
                    places.store_dir(job, node),
                    places.state_copy_dir(job, node),
                    places.gang_dir(job, node),
                ),
            ),
            shutdown_s=STOP_S,
        ),
        name="trainer",
        intensity=NEVER if config.training.backend == "fsdp2" else place.intensity,
    )


def rank(place: ProcessContext, number: int) -> TreeSpec:
    """A rank of the trainer's gang from 1 on. Rank 0 is in the trainer's process; the node agent restarts
    them all together."""
    from gleaner.actors.training.rank import TrainerRank

    job, config, node, adapters = place.job, place.config, place.node, place.adapters
    model_dir, gang_dir = Path(job.model_dir), places.gang_dir(job, node)
    return one_for_one(
        child(
            f"training/rank-{number}",
            lambda: TrainerRank(number, adapters.rank_work(config, number, model_dir, gang_dir)),
            shutdown_s=STOP_S,
        ),
        name=rank_kind(number),
        intensity=NEVER,
    )


def judge(place: ProcessContext) -> TreeSpec:
    """A judge beside the engine of the reserved host."""
    from gleaner.actors.engine.model_server import ModelServer

    config, adapters = place.config, place.adapters
    return one_for_one(
        child(
            f"{place.node}/judge",
            lambda: ModelServer(lambda: adapters.judge_entry(config)),
            shutdown_s=STOP_S,
        ),
        name="judge",
        intensity=place.intensity,
    )


def own(place: ProcessContext) -> TreeSpec:
    """Actors of the user's own. Raises ConfigError for one that cannot be imported."""
    from gleaner.nodeagent.own_actors import own_actor, own_name

    return one_for_one(
        *(child(own_name(one), own_actor(one), shutdown_s=STOP_S) for one in place.config.job.actors),
        name="own",
        intensity=place.intensity,
    )


def engine(place: ProcessContext) -> TreeSpec:
    """A preemptible instance."""
    from gleaner.actors.engine.worker.settings import WorkerSettings
    from gleaner.actors.engine.worker.worker import RolloutWorker

    job, config, node, adapters = place.job, place.config, place.node, place.adapters
    return one_for_one(
        child(
            f"{node}/engine",
            lambda: RolloutWorker(
                WorkerSettings.of(config),
                node,
                "preemptible",
                adapters.engine_host(config, "preemptible", place.launch.width),
                adapters.control_page(places.store_dir(job, node), f"{node}/engine"),
            ),
        ),
        name="engine",
        intensity=NEVER if place.launch.trial else place.intensity,
    )


TREES: Mapping[str, Callable[[ProcessContext], TreeSpec]] = {
    "rollout": rollout,
    "reward": reward,
    "reward-host": reward_host,
    "reward-planner": reward_planner,
    "gateway": gateway,
    "judge": judge,
    "own": own,
    "transfer": transfer,
    "trainer": trainer,
    "engine": engine,
}


def rank_kind(number: int) -> str:
    """The kind of process that rank `number` of a gang is."""
    return f"rank-{number}"


def tree_of(kind: str) -> Callable[[ProcessContext], TreeSpec] | None:
    """The tree of a process of this kind; None for an unknown kind."""
    if found := RANK.fullmatch(kind):
        return partial(rank, number=int(found[1]))
    return TREES.get(kind)


def threads(kind: str, config: Config) -> int:
    """CPU threads of numerical libraries in a process of this kind."""
    if kind == "trainer" or RANK.fullmatch(kind):
        return config.training.threads
    return config.engine.threads if kind == "engine" else 1
