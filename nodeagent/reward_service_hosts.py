"""Reward hosts of a reward service: its membership, and those that it starts itself.

The membership is the one of a head: registry, Scheduler and a provider that rents nothing. `ServiceHosts`
stands where a job has its controller, and takes what the Scheduler reports of them. The service is a job
without an end that the Scheduler has from its start, so that reward hosts run their part of it.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gleaner.actors.cluster.job import config_of, health_of
from gleaner.actors.cluster.local_hosts import HOPELESS, STOP_S, Join
from gleaner.actors.cluster.provider import LocalProvider
from gleaner.actors.cluster.scheduler import Scheduler
from gleaner.actors.names import CONTROLLER, PROVIDER, SCHEDULER
from gleaner.actors.protocol.cluster import JobSpec, NodeSeen
from gleaner.configs.load import dump
from gleaner.configs.schema import Config
from gleaner.nodeagent.adapters import AdapterFactory
from gleaner.nodeagent.host import LOOPBACK
from gleaner.supervisor import (
    Actor,
    ActorSystem,
    ChildSpec,
    Done,
    Intensity,
    ProcessSpec,
    Registry,
    TreeSpec,
    child,
    handles,
    one_for_one,
)
from gleaner.transport.wire import Peer

GRACE_S = 10.0
"""Of a host that the service starts: an ordered end takes no longer."""
PREFIX = "rewards-"
"""Of the names of those hosts; a number follows."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Options for reward hosts of a service.

    local: hosts that the service starts, as processes of its machine. listen: address at which hosts join
    ("tcp://host:port"). keys: key directory of the service, None for loopback only.
    """

    local: int = 0
    listen: str = LOOPBACK
    keys: Path | None = None


def job_of(config: Config, join: Peer) -> JobSpec:
    """The service as a job; the same for each life at the same address with the same settings, so its hosts
    keep their workers over a restart. It has no model: its hosts score texts."""
    settings = dump(config)
    digest = hashlib.blake2b(f"{join.endpoint}\n{settings}".encode(), digest_size=8).hexdigest()
    return JobSpec(run_id=f"rewards-{digest}", run_dir="", model_dir="", config=settings)


class ServiceHosts(Actor):
    """See the module."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()  # events of hosts, by kind

    @handles(NodeSeen)
    async def seen(self, message: NodeSeen) -> Done:
        self._seen[message.event] += 1
        why = f": {message.cause}" if message.cause else ""
        self.ctx.log.info("host %s (%s) %s%s", message.node, message.role, message.event, why)
        return Done()

    def summary(self) -> dict[str, str | int | float]:
        return dict(sorted(self._seen.items()))


def membership(system: ActorSystem, job: JobSpec, boot: int, adapters: AdapterFactory) -> Sequence[ChildSpec]:
    """The actors that reward hosts join. boot: identifies the life of this process."""
    return (
        child("registry", lambda: Registry(lambda: system.limits.lease_s)),
        child(PROVIDER, lambda: LocalProvider(None, boot, adapters.trace)),
        child(SCHEDULER, lambda: Scheduler(boot, standing=job)),
        child(CONTROLLER, ServiceHosts),
    )


def local_hosts(job: JobSpec, join: Join, folder: Path, count: int) -> TreeSpec:
    """Node agents of so many reward hosts on this machine; one that ends is started again. folder: of their
    state directories."""
    names = [f"{PREFIX}{number}" for number in range(1, count + 1)]
    fleet = config_of(job).fleet
    return one_for_one(
        *(child(name, _process(folder / name, job, join), shutdown_s=STOP_S) for name in names),
        name="reward-hosts",
        intensity=Intensity(restarts=fleet.restarts, within_s=fleet.restarts_within_s),
    )


def _process(state_dir: Path, job: JobSpec, join: Join) -> ProcessSpec:
    argv = [sys.executable, "-m", "gleaner.nodeagent", "start", "--join", join.head.endpoint]
    argv += ["--role", "reward", "--name", state_dir.name, "--state-dir", str(state_dir)]
    argv += ["--listen", f"{join.interface}:0", "--bulk", join.bulk, "--notices", "none"]
    argv += ["--grace", f"{GRACE_S:g}"]
    if join.keys is not None:
        argv += ["--keys", str(join.keys), "--head-key", join.head.public_key]
    return ProcessSpec(
        argv, state_dir / "logs" / "agent.out", hopeless=HOPELESS, health=health_of(config_of(job))
    )
