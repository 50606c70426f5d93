"""HostAdapterFactory: what a simulated process's actors use, from its host's stores.

Owns the choice of files: images and host copies in the host's memory, checkpoints on its disk, the history
with the run. `gleaner.sim.models.model_adapters` decides what the models do with them.
"""

from __future__ import annotations

import random
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from gleaner.actors.cluster import job as places
from gleaner.actors.gateway.gateway import MakeHttpEntry
from gleaner.actors.reward.service_pool import ScoringService
from gleaner.actors.training.records import AnyRecord
from gleaner.configs.schema import Config
from gleaner.configs.trace import Trace, TraceError
from gleaner.sim.file_mapping import FileMapping
from gleaner.sim.hosts import SimProcess
from gleaner.sim.machine_faults import MachineFaults
from gleaner.sim.models.history_memory import SimHistory
from gleaner.sim.models.load_faults import LoadFaults
from gleaner.sim.models.model_adapters import HostStores, ModelAdapterFactory, ModelFaults, SimIdentity
from gleaner.sim.models.scorer import ScorerFaults
from gleaner.sim.network import SimNet
from gleaner.sim.run_setup import RunSetup
from gleaner.sim.service_calls import ServiceCalls, SimConnections

EVERYWHERE = Path("/")


@dataclass(frozen=True)
class OrderedFaults:
    """Faults that the models of all hosts must have.

    Attributes: scorers: of the verifiers, counted; loads: of weights into engines; machines: of engines and
        of the trainer; service: calls of the reward service, for observers.
    """

    scorers: ScorerFaults
    loads: LoadFaults
    machines: MachineFaults
    service: ServiceCalls


class HostAdapterFactory(ModelAdapterFactory):
    """See `gleaner.nodeagent.adapters.AdapterFactory`.

    Args:
        net: on which its gateway listens.
        faults: those that its models must have.
        histories: records of each run, by its file.
    """

    def __init__(
        self,
        process: SimProcess,
        setting: RunSetup,
        net: SimNet,
        faults: OrderedFaults,
        histories: MutableMapping[Path, list[AnyRecord]],
    ) -> None:
        host = process.host
        super().__init__(
            setting.job_model,
            setting.host_devices(host.name),
            HostStores(
                memory=FileMapping(host.memory, places.SHARED_MEMORY),
                durable=FileMapping(host.disk.files, EVERYWHERE),
                histories=histories,
            ),
            process.meter,
            SimIdentity(host.name, f"{setting.seed}/{process.pid}"),
            ModelFaults(
                faults.scorers,
                load_fails=lambda version: faults.loads.strikes(host.name, version),
                spoil=lambda result: faults.machines.engines.spoil(host.name, result),
                trainer=faults.machines.trainer,
                checkpoints=host.disk.slowness,
            ),
        )
        self._host, self._trace = host, setting.trace
        self._process, self._net, self._seed = process, net, setting.seed
        self._service = faults.service

    def trace(self, name: str) -> Trace:
        """See `AdapterFactory`: the one that the simulation was given."""
        if self._trace is None:
            raise TraceError(f"{name}: this simulation was given no trace")
        return self._trace

    def gateway_door(self, config: Config, model_dir: Path, run_id: str) -> MakeHttpEntry:
        """See `AdapterFactory`: it listens on the simulated network."""
        from gleaner.sim.gateway_entry import entry_of
        from gleaner.sim.http_listening import HttpListening

        process, name = self._process, self._host.name

        def wall_s() -> float:
            return self._host.loop.wall_ms(name) / 1000

        listening = HttpListening(self._net, self._net.station(process.loop, name, process.name), wall_s)
        rng = random.Random(f"{self._seed}/gateway/{process.pid}")
        return entry_of(config, run_id, listening, wall_s, rng)

    def reward_service(self, config: Config, calls: int) -> ScoringService:
        """See `AdapterFactory`: it is reached over the simulated network, and gets no batches."""
        from gleaner.actors.reward.verifiers.shared_service import SharedService

        share, rng = config.reward.share, random.Random(f"{self._seed}/calls/{self._process.pid}")
        connections = SimConnections(self._net, self._process, self._service)
        return SharedService(share, share.job or config.job.name, calls, rng, connections, batches=False)

    def history(self, path: Path) -> SimHistory:
        """See `AdapterFactory`: it is on this host's disk."""
        return SimHistory(self.kept.histories.setdefault(path, []), lambda: self._host.disk.full)
