"""I6 from outside: an instance serves the image that the trainer's host published.

Owns the comparison, byte by byte, of an engine's served image with the image of that version on the trainer's
host. A version without an image there cannot be compared, and is not served for long. An image on a host that
no instance serves yet may be damaged: the next process that starts has to detect it.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from gleaner.chaos.real.cluster import RESERVED, Cluster


def strange_images(cluster: Cluster, versions: Mapping[str, int]) -> list[str]:
    """Instances whose served image differs from the published one, as texts. versions: of each engine whose
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
    """Image of the running job; None where it does not exist (any more)."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in memory.glob(f"gleaner-*/weights/v{version:09d}/model.safetensors"):
            return path.read_bytes()
    return None
