"""VerdictCache: the verdicts of a service that a repeated request is answered from.

Owns the verdicts of active batches, and results of items that no request was open for: a host that outlived
its proxy had them. A verdict of ours is not kept, since the item is scored again. Pure.
"""

from collections import OrderedDict

from gleaner.actors.reward.batch_limit import surplus_batches
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.verdicts import OURS

MOST_STRAY = 65_536


class VerdictCache:
    """See the module. At its limits the oldest batch of the job with the most, or the oldest stray verdict,
    is forgotten."""

    def __init__(self) -> None:
        self._batches: OrderedDict[str, dict[str, Verdict]] = OrderedDict()
        self._stray: OrderedDict[str, tuple[Verdict, str, float]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._batches.values())) + len(self._stray)

    def get(self, batch: str, item: str) -> Verdict | None:
        """The verdict of an item of a batch."""
        return self._batches.get(batch, {}).get(item)

    def claim(self, batch: str, item: str) -> tuple[Verdict, str, float] | None:
        """The stray verdict of an item, its stage, and the seconds that it took. It is the one of this batch
        from now on."""
        if (stray := self._stray.pop(item, None)) is not None:
            self.keep(batch, item, stray[0])
        return stray

    def has(self, item: str) -> bool:
        """Whether there is a verdict of this item, of any batch."""
        return item in self._stray or any(item in batch for batch in self._batches.values())

    def keep(self, batch: str, item: str, verdict: Verdict) -> None:
        """The first verdict of an item counts."""
        if verdict.status in OURS:
            return
        self._batches.setdefault(batch, {}).setdefault(item, verdict)
        for oldest in surplus_batches(self._batches):
            del self._batches[oldest]

    def keep_stray(self, item: str, verdict: Verdict, stage: str, took_s: float) -> None:
        """A verdict of a stage for which no request is open."""
        if verdict.status in OURS or item in self._stray:
            return
        self._stray[item] = verdict, stage, took_s
        while len(self._stray) > MOST_STRAY:
            self._stray.popitem(last=False)

    def forget(self, batch: str) -> None:
        """No verdict of this batch is requested any more."""
        self._batches.pop(batch, None)
