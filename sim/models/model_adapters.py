"""ModelAdapterFactory: modelled `gleaner.nodeagent.adapters.AdapterFactory` of a simulated host.

Owns the making, as the real implementation does for files, devices and processes. What is kept outlives the
process that made it: in the host's memory, or in what survives the host.
"""

import random
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gleaner.actors.engine.model_server import Entry
from gleaner.actors.engine.worker.port import StepResult
from gleaner.actors.gateway.gateway import MakeHttpEntry
from gleaner.actors.protocol.cluster import Inventory
from gleaner.actors.reward.scoring import WorkerSpec
from gleaner.actors.reward.service_pool import ScoringService
from gleaner.actors.training.records import AnyRecord
from gleaner.actors.weights.delta.image_delta import Mapper
from gleaner.configs import trace
from gleaner.configs.load import ConfigError
from gleaner.configs.schema import Config
from gleaner.configs.trace import Trace
from gleaner.sim.models.blob_memory import SimBlobs
from gleaner.sim.models.clock import Clock, PacedClock
from gleaner.sim.models.engine_host import SimEngineHost
from gleaner.sim.models.history_memory import SimHistory
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.image_memory import SimImages
from gleaner.sim.models.job_model import JobModel
from gleaner.sim.models.rank_work import SimRankWork
from gleaner.sim.models.saved_memory import SimCheckpoints, SimCopies
from gleaner.sim.models.scorer import ScorerFaults, SimScorer
from gleaner.sim.models.trainer_work import SimTrainerWork, TrainedModel, TrainerStores, first_weights
from gleaner.sim.slowness import Slowness

HOST_CORES = 16
HOST_MEMORY_BYTES = 256 * 2**30


@dataclass(frozen=True, slots=True)
class HostStores:
    """Stores of a host. memory: of the host (images, host copies), gone with it. durable: what survives the
    host (checkpoints). histories: of runs, by their path."""

    memory: MutableMapping[Path, bytes] = field(default_factory=dict)
    durable: MutableMapping[Path, bytes] = field(default_factory=dict)
    histories: MutableMapping[Path, list[AnyRecord]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SimIdentity:
    """Identity of a simulated process.

    Args:
        host: name of its host.
        purpose: names the draws of this process; never the same for two of them.
    """

    host: str
    purpose: str


@dataclass(frozen=True, slots=True)
class ModelFaults:
    """Faults that a run orders in models.

    Args:
        scorers: of verifiers on this host, ordered and counted.
        load_fails: whether an engine fails to load this version.
        spoil: the result of an engine's turn as it is returned.
        trainer: slowness of its work; checkpoints: of the disk that takes them.
    """

    scorers: ScorerFaults = field(default_factory=ScorerFaults)
    load_fails: Callable[[int], bool] = lambda version: False
    spoil: Callable[[StepResult], StepResult] = lambda result: result
    trainer: Slowness = field(default_factory=lambda: Slowness(lambda: 0.0))
    checkpoints: Slowness = field(default_factory=lambda: Slowness(lambda: 0.0))


class ModelAdapterFactory:
    """See the module.

    Args:
        job_model: the models of the run.
        host_devices: of this host.
        kept: of this host.
        clock: of this process; time spent on it is the time of the running offloaded work.
        identity: of this process.
        faults: of its models.
    """

    def __init__(
        self,
        job_model: JobModel,
        host_devices: HostDevices,
        kept: HostStores,
        clock: Clock,
        identity: SimIdentity,
        faults: ModelFaults | None = None,
    ) -> None:
        faults = faults or ModelFaults()
        self.job_model, self.host_devices, self.kept = job_model, host_devices, kept
        self.faults, self._model_faults = faults.scorers, faults
        self._clock, self._name, self._purpose = clock, identity.host, identity.purpose
        self._scorers = 0

    def prepare(self, kind: str, config: Config) -> None:
        """See `AdapterFactory`: models need no loading."""

    def inventory(self) -> Inventory:
        """See `AdapterFactory`."""
        return Inventory(
            hostname=self._name,
            cores=HOST_CORES,
            memory_bytes=HOST_MEMORY_BYTES,
            gpus=(self.host_devices.device.title,) * self.host_devices.devices,
        )

    async def unmet(self, role: str, config: Config) -> list[str]:
        """See `AdapterFactory`: what preemptible hosts lack according to the plant."""
        return list(self.job_model.unmet) if role == "preemptible" else []

    def trace(self, name: str) -> Trace:
        """See `AdapterFactory`."""
        return trace.read(name)

    def engine_host(self, config: Config, kind: str, width: int = 0) -> SimEngineHost:
        """See `AdapterFactory`."""
        rig = replace(self.host_devices, tp=width) if width else self.host_devices
        engine = self.job_model.engine(config, rig)
        if kind == "preemptible":
            launch_s = config.engine.relaunch_s if width else 0.0
            engine = replace(engine, dies=self.job_model.engine_dies, launch_s=launch_s)
        return SimEngineHost(
            engine, self.kept.memory, self._clock, self._model_faults.load_fails, self._model_faults.spoil
        )

    def control_page(self, store_dir: Path, instance: str) -> None:
        """See `AdapterFactory`: a simulated host has no processes beside its own."""

    def trainer_work(
        self, config: Config, model_dir: Path, store_dir: Path, state_dir: Path, gang_dir: Path
    ) -> SimTrainerWork:
        """See `AdapterFactory`. The initial weights follow from the job's seed, whatever `model_dir`
        holds."""
        return SimTrainerWork(
            self.job_model.trainer(self.host_devices),
            TrainedModel(
                first=first_weights(config.job.seed),
                config=self.job_model.model_config,
                image_bytes=self.job_model.image_bytes,
                token_scale=self.job_model.token_scale,
            ),
            TrainerStores(
                images=self.image_store(store_dir),
                copies=self.host_copies(state_dir),
                places=(self.kept.memory, self.kept.durable),
            ),
            PacedClock(self._clock, self._model_faults.trainer),
        )

    def gateway_door(self, config: Config, model_dir: Path, run_id: str) -> MakeHttpEntry:
        """See `AdapterFactory`: HTTP needs a network, which one host alone does not have."""
        raise ConfigError(["gateway.listen: this simulated host has no network; leave it empty"])

    def judge_entry(self, config: Config) -> Entry:
        """See `AdapterFactory`: no real model runs in simulated time."""
        raise ConfigError(["reward.judge.place: a simulated host serves no judge; set it to url"])

    def rank_work(self, config: Config, rank: int, model_dir: Path, gang_dir: Path) -> SimRankWork:
        """See `AdapterFactory`."""
        return SimRankWork(self._clock)

    def image_store(self, store_dir: Path) -> SimImages:
        """See `AdapterFactory`."""
        return SimImages(self.kept.memory, store_dir, self.job_model.pool)

    def delta_threads(self, config: Config) -> Mapper:
        """See `AdapterFactory`: on the one thread that there is."""
        return map

    def disk_versions(self, config: Config, model_dir: Path, run_id: str) -> None:
        """See `AdapterFactory`: a simulated host has no shared file system."""

    def host_copies(self, state_dir: Path) -> SimCopies:
        """See `AdapterFactory`."""
        return SimCopies(self.kept.memory, state_dir, self._clock)

    def checkpoints(self, directory: Path, keep: int) -> SimCheckpoints:
        """See `AdapterFactory`."""
        return SimCheckpoints(
            self.kept.durable,
            self.kept.memory,
            directory,
            keep,
            PacedClock(self._clock, self._model_faults.checkpoints),
            self.job_model.checkpoint_s(self.host_devices),
        )

    def history(self, path: Path) -> SimHistory:
        """See `AdapterFactory`."""
        return SimHistory(self.kept.histories.setdefault(path, []))

    def blobs(self, directory: Path) -> SimBlobs:
        """See `AdapterFactory`."""
        return SimBlobs(self.kept.memory, directory)

    def reward_service(self, config: Config, calls: int) -> ScoringService:
        """See `AdapterFactory`: HTTP needs a network, which one host alone does not have."""
        raise ConfigError(["reward.share.with: this simulated host has no network; leave it empty"])

    async def start_scorer(self, spec: WorkerSpec) -> SimScorer:
        """See `AdapterFactory`. Raises `WorkerHung`."""
        self._scorers += 1
        rng = random.Random(f"{self._purpose}/scorer/{self._scorers}")
        problems = self.job_model.problems(spec)
        blobs = SimBlobs.of_worker(self.kept.memory, spec)
        return await SimScorer.start(spec, problems, self.job_model.scorer, rng, self.faults, blobs)
