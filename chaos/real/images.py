"""I6 from outside: the weights in a host's shared memory are those that the trainer's host published.

Owns the comparing, version by version and byte by byte; a version that the trainer's host has no longer
cannot be compared, and is none that is served for long.
"""

import contextlib
from pathlib import Path

from chaos.real.cluster import RESERVED, Cluster

IMAGES = "gleaner-*/weights/v*.image"


def strange_images(cluster: Cluster) -> list[str]:
    """Images on preemptible hosts that are not what was published, in words."""
    published = {path.name: path for path in cluster.memory(RESERVED).glob(IMAGES)}
    found = []
    for spot in cluster.spots:
        for path in sorted(cluster.memory(spot).glob(IMAGES)):
            source = published.get(path.name)
            if source is not None and _differ(path, source):
                found.append(f"{spot}: {path.name} is not what {RESERVED} published")
    return found


def _differ(one: Path, other: Path) -> bool:
    """Whether both are there and hold different bytes."""
    with contextlib.suppress(FileNotFoundError):  # one made way for a newer version just now
        return one.read_bytes() != other.read_bytes()
    return False
