"""I6 from outside: what an instance serves is what the trainer's host published.

Owns the comparing, byte by byte, of the image that an engine says it serves with the image of that version on
the trainer's host; a version that is there no longer cannot be compared, and is none that is served for long.
An image on a host that nobody serves yet may be damaged: whoever starts next has to find out.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from chaos.real.cluster import RESERVED, Cluster


def strange_images(cluster: Cluster, versions: Mapping[str, int]) -> list[str]:
    """Instances that serve something else than was published, in words. versions: that of each engine whose
    life is known to be the present one."""
    found = []
    for spot in cluster.spots:
        version = versions.get(f"{spot}/engine", -1)
        served = _image(cluster.memory(spot), version)
        published = _image(cluster.memory(RESERVED), version)
        if served is not None and published is not None and served != published:
            found.append(f"{spot} serves version {version} with other bytes than {RESERVED} published")
    return found


def _image(memory: Path, version: int) -> bytes | None:
    """That of the job that runs; None where it is not there (any more)."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in memory.glob(f"gleaner-*/weights/v{version:09d}/model.safetensors"):
            return path.read_bytes()
    return None
