"""LoadFaults: loads of weights that must fail; the engine keeps what it serves.

The engine also reports the reason. Owns the orders, by host, and the bound: fewer loads of one version fail
than make the manager give it up. A version that no instance can load ends the job whose trainer made it.
"""

from collections import Counter, deque
from collections.abc import Callable

MOST = 2
"""Loads of one version that fail; the manager gives one up after three
(`gleaner.actors.rollout.fleet.failed_loads`)."""
WHY = "norm.weight has 63 columns, the model has 64"


class LoadFaults:
    """Ordered load faults of one cluster."""

    def __init__(self) -> None:
        self._ordered: dict[str, deque[Callable[[], None]]] = {}
        self._failed = Counter[int]()

    def order(self, host: str, came: Callable[[], None]) -> None:
        """One more load on this host must fail; `came` is called when it does."""
        self._ordered.setdefault(host, deque()).append(came)

    def strikes(self, host: str, version: int) -> bool:
        """Whether the load of this version that begins there fails."""
        ordered = self._ordered.get(host)
        if not ordered or self._failed[version] >= MOST:
            return False
        self._failed[version] += 1
        ordered.popleft()()
        return True
