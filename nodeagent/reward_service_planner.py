"""Planner of a reward service: the process that plans its workers, as beside a job.

Owns its place in the service's tree. It finds the service by the registry of its membership, or by one of its
own where no host can join.
"""

from collections.abc import Sequence
from dataclasses import replace

from gleaner.actors.cluster.job import health_of
from gleaner.actors.protocol.cluster import JobSpec
from gleaner.actors.reward.planning import choice
from gleaner.configs.schema import Config
from gleaner.nodeagent.exit_codes import HOPELESS
from gleaner.nodeagent.host import ProcessLocation
from gleaner.nodeagent.host_services import HostServices
from gleaner.nodeagent.numeric_threads import DEFAULTS, thread_limits
from gleaner.nodeagent.process_arguments import arguments, environment
from gleaner.nodeagent.process_trees import threads
from gleaner.supervisor import ActorSystem, ChildSpec, ProcessSpec, Registry, child

KIND = "reward-planner"
STOP_S = 5.0


def planner(
    system: ActorSystem,
    job: JobSpec,
    config: Config,
    location: ProcessLocation,
    services: HostServices,
    *,
    registry: bool,
) -> Sequence[ChildSpec]:
    """Its process; nothing where the settings fix the workers. location: of the service. registry: there is
    one."""
    if config.reward.planner.kind == choice.STATIC:
        return ()
    joined = replace(location, head=system.wire.local)
    spec = ProcessSpec(
        arguments(KIND, joined, services.write_job(location.state_dir, job)),
        location.state_dir / "logs" / f"{KIND}.out",
        {**thread_limits(threads(KIND, config)), **environment(joined)},
        HOPELESS,
        health_of(config),
        defaults=DEFAULTS,
    )
    own = child(KIND, spec, shutdown_s=STOP_S)
    if registry:
        return (own,)
    return (child("registry", lambda: Registry(lambda: system.limits.lease_s)), own)
