"""Seconds to write a version into new shared memory, or a replaced version's.

Usage: `python -m bench.weights.image_memory [--json FILE]`. One image of `IMAGE_BYTES`, `ROUNDS` versions
each way, in turn, by `ImageStore`: space is reserved, every byte is copied in from an array in memory, the
image is sealed. Beside them the same copy within existing memory of the process: the limit. Medians.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bench.table import Row, run
from gleaner.actors.weights.image.store import ImageStore

IMAGE_BYTES = 1 << 30
ROUNDS = 5
ABOUT = "Writing a version into shared memory: new pages against those of a version that made way"


def written_s(store: ImageStore, version: int, source: NDArray[np.uint8]) -> float:
    """Seconds for one version, from the request for space until it is visible."""
    began_s = time.perf_counter()
    with store.create(version, len(source)) as draft:
        np.frombuffer(draft.view, np.uint8)[:] = source
        draft.seal()
    return time.perf_counter() - began_s


def copied_s(source: NDArray[np.uint8], into: NDArray[np.uint8]) -> float:
    """The limit."""
    began_s = time.perf_counter()
    into[:] = source
    return time.perf_counter() - began_s


def measure() -> Sequence[Row]:
    """A folder in shared memory, which is freed at the end."""
    source = np.random.default_rng(1).integers(0, 256, IMAGE_BYTES, np.uint8)
    into = source.copy()
    fresh, again, limit = [], [], []
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gleaner-bench-") as directory:
        store = ImageStore(directory, keep=2)
        written_s(store, 0, source)
        written_s(store, 1, source)
        for number in range(ROUNDS):
            version = 2 + 2 * number
            again.append(written_s(store, version, source))
            store.discard(version - 1)  # with one version alone the next must get new memory
            fresh.append(written_s(store, version + 1, source))
            limit.append(copied_s(source, into))
    rows = [("new memory", fresh), ("memory of a version that made way", again)]
    least = statistics.median(limit)
    return [Row(words, "s", statistics.median(took), "one copy", least) for words, took in rows]


if __name__ == "__main__":
    run("weights.image_memory", ABOUT, measure)
