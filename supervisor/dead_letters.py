"""DeadLetters: undeliverable messages, counted and sampled by reason.

Owns the counts and the samples of one process. Does not own what happens to such a message (nothing: it is
gone), nor the texts of the reasons, which the dropping component provides.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable

import msgspec

MAX_REASONS = 32
"""Distinct reasons; they are constants of the code, so more of them is a defect, counted under `OTHER`."""
SAMPLES = 16
"""Samples kept for each reason: enough to show sender and content, and a flood of one reason hides no
other."""
OTHER = "other"


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One undeliverable message. `t_s`: the process's loop time; `to`, `source`: names of actors, `source`
    empty where it was not an actor or is not known."""

    t_s: float
    reason: str
    kind: str
    to: str
    source: str = ""


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class DeadLetters:
    """Bounded by `MAX_REASONS` and `SAMPLES`.

    Args:
        now: the clock, the running loop's by default.
    """

    def __init__(self, now: Callable[[], float] = _loop_time) -> None:
        self.counts: Counter[str] = Counter()
        self._samples: dict[str, deque[DeadLetter]] = {}
        self._now = now

    def add(self, reason: str, to: str, kind: str, source: str = "") -> None:
        """Count one message and keep it as a sample."""
        samples = self._samples.get(reason)
        if samples is None:
            if len(self._samples) >= MAX_REASONS:
                reason = OTHER
            samples = self._samples.setdefault(reason, deque(maxlen=SAMPLES))
        self.counts[reason] += 1
        samples.append(DeadLetter(t_s=self._now(), reason=reason, kind=kind, to=to, source=source))

    def samples(self, limit: int | None = None) -> list[DeadLetter]:
        """The kept samples, oldest first; at most the newest `limit`."""
        kept = sorted((one for each in self._samples.values() for one in each), key=lambda one: one.t_s)
        return kept if limit is None else kept[max(len(kept) - limit, 0) :]
