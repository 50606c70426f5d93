"""`RetractedCounts`: requests whose caches engines gave up for others, summed by kind of instance.

Workers report the sum of an incarnation, so a lost report loses nothing. Pure; bounded by the instances.
"""

from collections import Counter


class RetractedCounts:
    """See the module."""

    def __init__(self) -> None:
        self.by_kind: Counter[str] = Counter()
        """Of all incarnations so far."""
        self._known: dict[str, tuple[int, int]] = {}  # by instance: incarnation, its sum

    def add(self, instance: str, incarnation: int, kind: str, count: int) -> None:
        """The sum that an incarnation reports; an older, smaller one changes nothing."""
        last, before = self._known.get(instance, (incarnation, 0))
        known = before if last == incarnation else 0
        if count > known:
            self.by_kind[kind] += count - known
        self._known[instance] = incarnation, max(known, count)

    def forget(self, instance: str) -> None:
        """The instance is gone; what it has reported counts."""
        self._known.pop(instance, None)
