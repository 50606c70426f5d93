"""HostAdapterFactory: what a simulated process's actors use, from its host's stores.

Owns the choice of files: images and host copies in the host's memory, checkpoints on its disk, the history
with the run. `gleaner.sim.models.model_adapters` decides what the models do with them.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

from gleaner.actors.cluster import job as places
from gleaner.actors.training.records import AnyRecord
from gleaner.configs.trace import Trace, TraceError
from gleaner.sim.file_mapping import FileMapping
from gleaner.sim.hosts import SimProcess
from gleaner.sim.models.history_memory import SimHistory
from gleaner.sim.models.load_faults import LoadFaults
from gleaner.sim.models.model_adapters import HostStores, ModelAdapterFactory, ModelFaults, SimIdentity
from gleaner.sim.models.scorer import ScorerFaults
from gleaner.sim.run_setup import RunSetup

EVERYWHERE = Path("/")


class HostAdapterFactory(ModelAdapterFactory):
    """See `gleaner.nodeagent.adapters.AdapterFactory`.

    Args:
        scorer_faults: ordered faults of the cluster's verifiers, counted; load_faults: of its engines.
        histories: records of each run, by its file.
    """

    def __init__(
        self,
        process: SimProcess,
        setting: RunSetup,
        scorer_faults: ScorerFaults,
        load_faults: LoadFaults,
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
            ModelFaults(scorer_faults, lambda version: load_faults.strikes(host.name, version)),
        )
        self._host, self._trace = host, setting.trace

    def trace(self, name: str) -> Trace:
        """See `AdapterFactory`: the one that the simulation was given."""
        if self._trace is None:
            raise TraceError(f"{name}: this simulation was given no trace")
        return self._trace

    def history(self, path: Path) -> SimHistory:
        """See `AdapterFactory`: it is on this host's disk."""
        return SimHistory(self.kept.histories.setdefault(path, []), lambda: self._host.disk.full)
