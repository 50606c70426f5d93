"""FailedLoads: which weights are given up because instances cannot load them.

Owns the counts of failed loads, and the rule. Pure: no clock, no I/O. Soft state: a restarted manager starts
counting from zero.

One failed load proves little about the weights: a disk is full, a server is killed. Weights are given up when
`LOADS` loads of them failed, on `INSTANCES` instances (on the only one, if there is one), and none ever
succeeded. A load in which an engine died counts only if that kind of instance has served other weights:
engines that cannot even start are no fault of the weights.
"""

from collections import Counter
from typing import TypeVar

LOADS, INSTANCES = 3, 2
MAX_VERSIONS = 64
"""Versions that are remembered; the oldest are forgotten."""

Key = tuple[int, bytes]
"""Version and root."""
T = TypeVar("T")


class FailedLoads:
    """See the module."""

    def __init__(self) -> None:
        self._failed: dict[Key, Counter[tuple[str, str]]] = {}  # by instance and kind
        self._served: dict[Key, set[str]] = {}  # the kinds that served it

    def served(self, key: Key, kind: str) -> None:
        """An instance of this kind serves these weights: they can be loaded."""
        self._served.setdefault(key, set()).add(kind)
        self._failed.pop(key, None)
        _bound(self._served)

    def failed(self, key: Key, instance: str, kind: str, *, died: bool) -> None:
        """A load failed; `died`: the engine died with it."""
        if not died or any(kind in kinds for kinds in self._served.values()):
            self._failed.setdefault(key, Counter())[instance, kind] += 1
            _bound(self._failed)

    def given_up(self, key: Key, kind: str, present: int) -> bool:
        """Whether no instance of this kind (`present` of them are registered) will load these weights."""
        counts = self._failed.get(key)
        if counts is None or key in self._served:
            return False
        instances = {instance for instance, its in counts if its == kind}
        return counts.total() >= LOADS and len(instances) >= min(INSTANCES, max(1, present))


def _bound(kept: dict[Key, T]) -> None:
    while len(kept) > MAX_VERSIONS:
        del kept[next(iter(kept))]
