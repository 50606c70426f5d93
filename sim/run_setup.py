"""RunSetup: input of a simulated run (job settings, seed, machines, links).

Owns the value and the names that follow from it. Nothing here is random and nothing runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from gleaner.actors.cluster.fleet import RESERVED
from gleaner.actors.cluster.provider import refuse_names
from gleaner.actors.protocol.cluster import JobSpec
from gleaner.configs.load import dump
from gleaner.configs.schema import Config
from gleaner.configs.trace import Trace, TraceError
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.job_model import JobModel
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.shapes import model_shape
from gleaner.sim.network_path import Profile
from gleaner.sim.shared_cores import CoreSharing

HEAD = "head"
CLIENT = "client"
SPARE = "spare"
REWARDS = "rewards"
SCORES, SCORES_PORT = "scores", 8900
"""The host of a reward service that jobs share, and where it listens there (`reward.share.with`)."""
SERVICE = "service"
"""Kind of the process there."""
RUNS = Path("/srv/gleaner/runs")
"""Folder of a job's history and checkpoints; simulated hosts share no folder."""
QUICK_LENGTHS = LengthLaw(median=9.0, sigma=0.5, correlation=0.6)
"""Lengths of the quickstart's answers: words of 3 to 10 letters, spelt backward, by a model that rambles at
times."""


@dataclass(frozen=True, slots=True)
class Paces:
    """Durations of machines (s). boot_s: from the request for a machine to its init system; boot_spread_s: at
    most so much more for a preemptible one, drawn from the seed. start_s: from there to our first line;
    prepare_s: for the libraries of a process that computes. restart_s: from the failure of a node agent until
    its init system starts it again (RestartSec of the shipped unit). watchdog_s: without a sign of life of a
    node agent until its init system kills it (WatchdogSec of that unit); ready_s: from its start to its first
    one (TimeoutStartSec)."""

    boot_s: float = 1.0
    boot_spread_s: float = 0.0
    start_s: float = 0.5
    prepare_s: float = 2.0
    restart_s: float = 2.0
    watchdog_s: float = 20.0
    ready_s: float = 90.0

    def of(self, kind: str) -> float:
        """Seconds from the start of a process of this kind to its first line."""
        computes = kind in ("trainer", "engine") or kind.startswith("rank-")
        return self.start_s + (self.prepare_s if computes else 0.0)


@dataclass(frozen=True, slots=True)
class RunSetup:
    """See the module.

    Attributes:
        config: the job's settings. seed: of everything that is drawn around the job; its own seed is
            `config.job.seed`.
        job_model: the model that is trained, its responses, its verifiers.
        reserved, preemptible: the rig of each host of a role.
        trace: when preemptible hosts are added and removed; None: `fleet.n_prem_max` of them, always.
        deadline_s: virtual seconds by which the job must be over.
        link: the path between two hosts, in each direction. egress_bytes_s: of a host's network card;
            preemptible_bytes_s: of a preemptible one's, in and out, where it is slower.
        crowding: of hosts that share the cores of one machine, how much longer a piece of work takes.
        one_machine: hosts are processes, as those of a local fleet: the connections of one that is taken away
            break at once. Otherwise it falls silent.
        zones: names that preemptible hosts are dealt to in turn; those of a zone may fail together.
        spares: preemptible hosts beside those that may be requested, which the cloud may deliver by mistake.
        rewards: number of reward hosts, which are there from the beginning.
        order_seed: of the order and pace of turns (`gleaner.sim.turn_order`); 0: first come, first served.
    """

    config: Config
    seed: int = 0
    job_model: JobModel = field(default_factory=lambda: JobModel(model_shape("quickstart"), QUICK_LENGTHS))
    reserved: HostDevices = field(default_factory=lambda: HostDevices("cpu_core"))
    preemptible: HostDevices = field(default_factory=lambda: HostDevices("cpu_core"))
    trace: Trace | None = None
    deadline_s: float = 3600.0
    link: Profile = field(default_factory=Profile)
    egress_bytes_s: float = 1.25e9
    preemptible_bytes_s: float = math.inf
    paces: Paces = field(default_factory=Paces)
    crowding: CoreSharing = field(default_factory=CoreSharing)
    one_machine: bool = False
    zones: tuple[str, ...] = ("a", "b", "c")
    order_seed: int = 0
    spares: int = 0
    rewards: int = 0

    def host_devices(self, host: str) -> HostDevices:
        """The rig of a host."""
        return self.preemptible if role_of(host) == "preemptible" else self.reserved

    def ingress_bytes_s(self, host: str) -> float:
        """Input rate of a host's network card."""
        return self.preemptible_bytes_s if role_of(host) == "preemptible" else math.inf

    def preemptible_hosts(self) -> list[str]:
        """Every preemptible host that there may be, in the order of their first offer."""
        spares = [f"{SPARE}-{number}" for number in range(1, self.spares + 1)]
        if self.trace is None:
            spots = [f"spot-{number}" for number in range(1, self.config.fleet.n_prem_max + 1)]
        else:
            spots = list(dict.fromkeys(event.instance for event in self.trace.events))
        return spots + spares

    def reward_hosts(self) -> list[str]:
        """Every reward host."""
        return [f"{REWARDS}-{number}" for number in range(1, self.rewards + 1)]

    @property
    def shares(self) -> bool:
        """Whether a reward service scores for the job, on a host of its own."""
        return bool(self.config.reward.share.with_)

    def zone(self, host: str) -> str:
        """The zone of a preemptible host; "" for the others."""
        if role_of(host) != "preemptible":
            return ""
        return self.zones[self.preemptible_hosts().index(host) % len(self.zones)]

    def job(self) -> JobSpec:
        """The job, as `rlctl` would submit it. Its trace is the provider's to read, by its name."""
        run_id = f"{self.config.job.name}-{self.seed}"
        folder = RUNS / run_id
        return JobSpec(
            run_id=run_id, run_dir=str(folder), model_dir=str(folder / "model"), config=dump(self.config)
        )


def refuse_hosts(trace: Trace) -> None:
    """An instance of a trace becomes a host of that name. Raises TraceError for one that is taken."""
    refuse_names(trace)
    for event in trace.events:
        if role_of(event.instance) != "preemptible":
            raise TraceError(
                f"{trace.name}: {event.instance} is the name of another host; rename the instance"
            )


def role_of(host: str) -> str:
    """The role of a host, by its name."""
    found = {HEAD: "head", RESERVED: "reserved", CLIENT: "client", SCORES: "scores"}.get(host)
    return found or ("reward" if host.startswith(f"{REWARDS}-") else "preemptible")
