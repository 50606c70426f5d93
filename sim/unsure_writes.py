"""UnsureWrites: the newest transactions of a journal, which a power loss may take back.

Owns what is sure: everything up to SQLite's last checkpoint, what the kernel has written back by itself, and
what a commit forced out.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from gleaner.sim.kept_streams import Commit, KeptStreams
from gleaner.sim.power_loss import Recovered, after_power_loss

WRITEBACK_S = 35.0
"""After which the kernel has written a page back: Linux looks every 5 s for those that are 30 s old."""
CHECKPOINT_COMMITS = 128
"""SQLite checkpoints its log after 1,000 pages; a commit writes a few."""


class UnsureWrites:
    """See the module. `now_s`: the time."""

    def __init__(self, kept: KeptStreams, now_s: Callable[[], float]) -> None:
        self._kept, self._now_s = kept, now_s
        self._sure = KeptStreams(kept.place, lambda: "", lambda: "")
        self._sure.restore(kept.all_rows())
        self._recent: deque[tuple[float, Commit]] = deque()
        self._forced = 0  # so many of the oldest of these were forced out
        kept.on_commit = self._committed

    def lose_power(self, rng: random.Random, *, false_syncs: bool) -> Recovered:
        """The journal is what production finds after that."""
        self._settle(sure=0 if false_syncs else self._forced)
        left = after_power_loss(
            self._kept.place,
            self._sure.all_rows(),
            [commit for _, commit in self._recent],
            rng,
            false_syncs=false_syncs,
        )
        self._kept.refusal = left.refusal if left.streams is None else ""
        if left.streams is not None:
            self._kept.restore(left.streams)
            self._kept.torn = False
            self._sure.restore(left.streams)
            self._recent.clear()
            self._forced = 0
        return left

    def force_out(self) -> None:
        """Everything so far is stored, unless the disk only reports so."""
        self._forced = len(self._recent)

    def _committed(self, commit: Commit) -> None:
        self._recent.append((self._now_s(), commit))
        if len(self._recent) >= CHECKPOINT_COMMITS:
            self._settle(sure=CHECKPOINT_COMMITS)
        else:
            self._settle()

    def _settle(self, sure: int = 0) -> None:
        before_s = self._now_s() - WRITEBACK_S
        while self._recent and (sure > 0 or self._recent[0][0] <= before_s):
            self._sure.apply(self._recent.popleft()[1])
            self._forced = max(0, self._forced - 1)
            sure -= 1
