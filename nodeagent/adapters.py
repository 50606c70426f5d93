"""AdapterFactory: what a host's actors use (engines, trainers, images, files, scorers).

Owns the making of each (copies too), in one place. An actor gets them as arguments and knows only their
ports, so the same actors run on other fittings (models of engines and trainers, files in memory). Torch is
imported only in the processes that compute.
"""

from pathlib import Path
from typing import Protocol

from gleaner.actors.cluster.checkpoint_store import CheckpointStore
from gleaner.actors.cluster.host_copy import HostCopies
from gleaner.actors.cluster.saved_state import Checkpoints, Copies
from gleaner.actors.engine.model_server import Entry
from gleaner.actors.engine.worker.port import AnyHost
from gleaner.actors.gateway.gateway import MakeHttpEntry
from gleaner.actors.protocol.cluster import Inventory
from gleaner.actors.reward.blobs import BlobFolder, Blobs
from gleaner.actors.reward.scoring import ScoringWorker, WorkerSpec
from gleaner.actors.reward.service_pool import ScoringService
from gleaner.actors.reward.worker_process import WorkerProcess
from gleaner.actors.training.history import HistoryWriter
from gleaner.actors.training.rank import RankWork
from gleaner.actors.training.records import History
from gleaner.actors.training.work import TrainerWork
from gleaner.actors.weights.control.page import ControlPage
from gleaner.actors.weights.delta.image_delta import Mapper
from gleaner.actors.weights.disk.publication import DiskVersions
from gleaner.actors.weights.image.port import Images
from gleaner.actors.weights.image.store import ImageStore
from gleaner.configs import trace
from gleaner.configs.schema import Config
from gleaner.configs.trace import Trace


class AdapterFactory(Protocol):
    """Each call makes a new object, for one life of one actor; its kept state is stored under its path."""

    def prepare(self, kind: str, config: Config) -> None:
        """Load what the actors of such a process (`process_trees.tree_of`) need, before their first use."""

    def inventory(self) -> Inventory:
        """What this host has, now."""

    async def unmet(self, role: str, config: Config) -> list[str]:
        """Requirements of its part of a job that this host does not meet: a finished line for each."""

    def trace(self, name: str) -> Trace:
        """The trace of availability of this name or file. Raises TraceError."""

    def engine_host(self, config: Config, kind: str, width: int = 0) -> AnyHost:
        """An engine without weights, for a RolloutWorker of this kind (reserved or preemptible). width:
        devices of one copy of the model; 0: as the settings have it."""

    def control_page(self, store_dir: Path, instance: str) -> ControlPage | None:
        """The page on which an instance shows its served weights to the processes of its host; None: it has
        no readers."""

    def trainer_work(
        self, config: Config, model_dir: Path, store_dir: Path, state_dir: Path, gang_dir: Path
    ) -> TrainerWork:
        """The work of a Trainer.

        Args:
            config: resolved settings.
            model_dir: the initial checkpoint (Hugging Face format).
            store_dir: images of weights in shared memory, served by the TransferAgent.
            state_dir: host copies of the trainer's state in shared memory.
            gang_dir: where its processes meet, if it has several.
        """

    def rank_work(self, config: Config, rank: int, model_dir: Path, gang_dir: Path) -> RankWork:
        """The work of a TrainerRank, from 1 on; the arguments are those of its Trainer."""

    def image_store(self, store_dir: Path) -> Images:
        """The images of weights on this host, for a TransferAgent."""

    def delta_threads(self, config: Config) -> Mapper:
        """The pool that makes and applies the chunks of deltas, for a TransferAgent."""

    def disk_versions(self, config: Config, model_dir: Path, run_id: str) -> DiskVersions | None:
        """The folder of `weights.disk`, for the TransferAgent of the host that trains; None for none. Raises
        OSError."""

    def host_copies(self, state_dir: Path) -> Copies:
        """The host copies that a trainer leaves here, for a StateManager."""

    def checkpoints(self, directory: Path, keep: int) -> Checkpoints:
        """Durable checkpoints, of which the newest `keep` stay, for a StateManager."""

    def history(self, path: Path) -> History:
        """The history of a run, open for appending. Raises HistoryError, OSError."""

    def gateway_door(self, config: Config, model_dir: Path, run_id: str) -> MakeHttpEntry:
        """The HTTP server of a Gateway; model_dir: the initial checkpoint, for its tokenizer."""

    def judge_entry(self, config: Config) -> Entry:
        """The server of the job's own judge, not started."""

    def blobs(self, directory: Path) -> Blobs:
        """What stages of reward items leave on this host for the next ones. Raises OSError."""

    def reward_service(self, config: Config, calls: int) -> ScoringService:
        """The service of `reward.share`, for so many calls at a time."""

    async def start_scorer(self, spec: WorkerSpec) -> ScoringWorker:
        """A process that loaded its scorer, for a RewardProxy. Raises ScorerUnusable, WorkerDied or
        WorkerHung."""


class RealAdapterFactory:
    """The fittings of the machine that this process runs on."""

    def prepare(self, kind: str, config: Config) -> None:
        """See `AdapterFactory`: torch takes seconds to import."""
        if kind == "trainer" or (kind == "engine" and config.engine.kind == "builtin"):
            import gleaner.actors.engine.builtin.host
        if kind == "judge":
            import gleaner.nodeagent.judge_server
        if kind == "trainer":
            import gleaner.actors.training.trainer_files
        if kind == "trainer" and config.training.backend == "fsdp2":
            import gleaner.actors.training.fsdp2_files
        if kind.startswith("rank-"):
            import gleaner.actors.training.fsdp2_rank  # noqa: F401

    def inventory(self) -> Inventory:
        """See `AdapterFactory`."""
        from gleaner.nodeagent.inventory import take_inventory

        return take_inventory()

    async def unmet(self, role: str, config: Config) -> list[str]:
        """See `AdapterFactory`: of a preemptible host, what its engine is started from."""
        if role != "preemptible":
            return []
        from gleaner.actors.engine.servers.requirements import unmet_here

        return await unmet_here(config.engine)

    def trace(self, name: str) -> Trace:
        """See `AdapterFactory`."""
        return trace.read(name)

    def engine_host(self, config: Config, kind: str, width: int = 0) -> AnyHost:
        """See `AdapterFactory`. The engine beside the trainer, on its device, is always the builtin one."""
        if kind == "preemptible" and config.engine.kind != "builtin":
            from gleaner.actors.engine.servers.factory import Spread, server_host

            copies = self.inventory().devices // width if width else 0
            return server_host(config, spread=Spread(width, copies) if width else None)
        from gleaner.actors.engine.builtin.host import BuiltinHost
        from gleaner.actors.engine.builtin.settings import BuiltinSettings

        return BuiltinHost(BuiltinSettings.of(config))

    def control_page(self, store_dir: Path, instance: str) -> ControlPage:
        """See `AdapterFactory`."""
        from gleaner.actors.weights.control.file import ControlFile

        return ControlFile(store_dir, instance)

    def trainer_work(
        self, config: Config, model_dir: Path, store_dir: Path, state_dir: Path, gang_dir: Path
    ) -> TrainerWork:
        """See `AdapterFactory`."""
        from gleaner.actors.training.settings import ComputeSettings

        settings = ComputeSettings.of(config)
        if config.training.backend == "fsdp2":
            from gleaner.actors.training.fsdp2_files import GangFiles

            return GangFiles(settings, model_dir, store_dir, state_dir, gang_dir)
        from gleaner.actors.training.trainer_files import TrainerFiles

        return TrainerFiles(settings, model_dir, store_dir, state_dir)

    def rank_work(self, config: Config, rank: int, model_dir: Path, gang_dir: Path) -> RankWork:
        """See `AdapterFactory`."""
        from gleaner.actors.training.fsdp2_rank import GangRank
        from gleaner.actors.training.settings import ComputeSettings

        return GangRank(ComputeSettings.of(config), rank, model_dir, gang_dir)

    def image_store(self, store_dir: Path) -> Images:
        """See `AdapterFactory`."""
        return ImageStore(store_dir)

    def delta_threads(self, config: Config) -> Mapper:
        """See `AdapterFactory`."""
        from gleaner.actors.weights.delta.threads import on_threads

        return on_threads(config.weights.delta_threads)

    def disk_versions(self, config: Config, model_dir: Path, run_id: str) -> DiskVersions | None:
        """See `AdapterFactory`."""
        weights = config.weights
        if not weights.disk:
            return None
        from gleaner.actors.weights.disk.writer import DiskWriter

        return DiskWriter(
            Path(weights.disk),
            encoding=weights.disk_encoding,
            checksum=weights.disk_checksum,
            like=model_dir,
            stitch_run=run_id if weights.disk_layout == "stitch" else "",
        )

    def host_copies(self, state_dir: Path) -> Copies:
        """See `AdapterFactory`."""
        return HostCopies(state_dir)

    def checkpoints(self, directory: Path, keep: int) -> Checkpoints:
        """See `AdapterFactory`."""
        return CheckpointStore(directory, keep=keep)

    def history(self, path: Path) -> History:
        """See `AdapterFactory`."""
        return HistoryWriter(path)

    def gateway_door(self, config: Config, model_dir: Path, run_id: str) -> MakeHttpEntry:
        """See `AdapterFactory`."""
        from gleaner.nodeagent.gateway_http import door_of

        return door_of(config, Path(config.model.path).name or config.job.name, model_dir, run_id)

    def judge_entry(self, config: Config) -> Entry:
        """See `AdapterFactory`."""
        from gleaner.nodeagent.judge_server import judge_entry

        return judge_entry(config)

    def blobs(self, directory: Path) -> BlobFolder:
        """See `AdapterFactory`."""
        return BlobFolder(directory)

    def reward_service(self, config: Config, calls: int) -> ScoringService:
        """See `AdapterFactory`."""
        from gleaner.actors.reward.verifiers.shared_service import SharedService

        share = config.reward.share
        return SharedService(share, share.job or config.job.name, calls)

    async def start_scorer(self, spec: WorkerSpec) -> ScoringWorker:
        """See `AdapterFactory`."""
        return await WorkerProcess.start(spec)
