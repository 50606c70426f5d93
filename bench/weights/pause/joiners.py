"""Joining host: from the start of its processes to its first token, in mid-run."""

import time
from dataclasses import dataclass

from bench.weights.pause.cluster import Cluster, Host
from bench.weights.pause.flips import first_of
from bench.weights.pause.load import ThroughManager


@dataclass(frozen=True, slots=True)
class Join:
    """Seconds from the start of its processes: `registered_s` (interpreter, imports, its name), `pulled_s`
    (the version is on the host, verified), `ready_s` (its engine runs), `serves_s` (with that version),
    `first_s`: its first token reached the caller. `pull_s`: the pull itself, of `pulled_mb`."""

    engine: str
    registered_s: float
    pulled_s: float
    ready_s: float
    serves_s: float
    first_s: float
    pull_s: float
    pulled_mb: float


async def join(cluster: Cluster, name: str, load: ThroughManager, engine: str) -> tuple[Host, Join]:
    """Start a host, for which requests wait. It is kept."""
    came = len(load.timeline.came)
    began_s = time.monotonic()
    host = cluster.start(name, "transfer", "engine")
    registered_s = await cluster.until_registered(host) - began_s
    serves_s = await cluster.until_serving(host) - began_s
    first_s = await first_of(load.timeline, str(cluster.version), load.look, since=came) - began_s
    figures = await cluster.figures(host, "engine", host.instance)
    pulled_s = registered_s + float(figures["fetched_s"])
    return host, Join(
        engine=engine,
        registered_s=registered_s,
        pulled_s=pulled_s,
        ready_s=registered_s + float(figures.get("engine_s", 0.0)),
        serves_s=serves_s,
        first_s=first_s,
        pull_s=float(figures["pulled_s"]),
        pulled_mb=float(figures["pulled_mb"]),
    )
