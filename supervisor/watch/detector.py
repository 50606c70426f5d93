"""Detector: phi-accrual failure detector of one watched process.

It decides when silence means death. Pure: arrivals go in, a level is returned; no clock, no loop.

This is the detector of Hayashibara, Défago, Yared, Katayama 2004, "The phi accrual failure detector", as Akka
and Cassandra run it. The times between beats are learnt; phi(t) = -log10 P(a beat arrives later than t),
under a normal distribution of the learnt times. Phi 1 means that one in ten beats is that late, phi 8 one in
10^8. So a peer that answers regularly is suspected early. One that stutters (a loaded machine, a loop that is
held up) is suspected late. A fixed time-out must choose one of the two errors for all peers.

Two levels, as two errors cost differently. SUSPECT is cheap to take back (no new work is sent there): it
starts at `SUSPECT_PHI` of the plain silence. DEAD cannot be taken back (work is done again elsewhere, a new
incarnation begins), so an *acceptable pause* is subtracted from the silence first (Akka's
`acceptable-heartbeat-pause`: a collection of garbage, a stalled loop), and death is phi of the rest. Three
bounds hold whatever was learnt:

- the deviation counts as `MIN_DEVIATION` of a beat at least, or a perfect history would make a beat that is a
  millisecond late a proof of death;
- no silence up to the acceptable pause is death;
- every silence of the hard bound is death: patience that was learnt from a stuttering peer ends there.

The distribution is normal because Akka's long use shows that it is good enough; the tail is computed by
`erfc`, not by the usual logistic approximation, and ends at `MAX_PHI`, where doubles end.

A learnt interval counts as the acceptable pause at most, so that one long freeze does not hide the next one.
(Akka learns no interval that ended a suspicion; then a peer that becomes slow for good stays suspected for
good.)
"""

import enum
import math
from collections import deque
from dataclasses import dataclass

SUSPECT_PHI = 8.0  # of the silence: one false suspicion in 10^8 beats, years of a cluster
DEAD_PHI = 8.0  # of the silence less the acceptable pause
MAX_PHI = 300.0  # where the tail of a double ends: 10^-300
WINDOW = 100  # intervals remembered; 50 s of the default beat: follows a host that gets busy
MIN_DEVIATION = 0.2  # of a beat; the jitter of a loop with other work in it
FIRST_DEVIATION = 0.25  # of a beat, before anything was learnt (Akka: first-heartbeat-estimate)
PAUSE_SHARE = 0.6  # of the bound: the acceptable pause, where none is given
NS = 10**9  # nanoseconds of a second


class Verdict(enum.Enum):
    """Meaning of a silence."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Patience:
    """Expected behaviour of a peer, in seconds: a beat every `beat_s`; silence up to `pause_s` is never
    death, silence of `hard_s` always is. Raises ValueError unless 0 < beat_s, 0 <= pause_s < hard_s, beat_s <
    hard_s."""

    beat_s: float
    pause_s: float
    hard_s: float

    def __post_init__(self) -> None:
        if not (0 < self.beat_s < self.hard_s and 0 <= self.pause_s < self.hard_s):
            raise ValueError(f"{self}: expected 0 < beat_s < hard_s and 0 <= pause_s < hard_s")

    @classmethod
    def within(cls, bound_s: float, beat_s: float) -> "Patience":
        """For a watcher that looks once a beat and must decide by `bound_s`: the last look before then
        decides. The acceptable pause is the usual share of the bound."""
        return cls(beat_s, bound_s * PAUSE_SHARE, max(bound_s - beat_s, (bound_s + beat_s) / 2))


class Detector:
    """The suspicion against one peer. All times are of one monotonic clock, in seconds."""

    __slots__ = ("_deviation_s", "_intervals", "_mean_s", "_squares", "_sum", "last_s", "patience")

    def __init__(self, patience: Patience, now: float) -> None:
        self.patience = patience
        self.last_s = now  # the newest sign of life; at first the time from which one is expected
        first, spread = patience.beat_s, patience.beat_s * FIRST_DEVIATION
        # Whole nanoseconds: a running sum of floats would drift from beat to beat.
        self._intervals: deque[int] = deque()
        self._sum = self._squares = 0
        self._mean_s = self._deviation_s = 0.0
        self._learn(first - spread)
        self._learn(first + spread)

    def beat(self, now: float) -> None:
        """A sign of life."""
        interval = now - self.last_s
        if interval <= 0:
            return
        self._learn(min(interval, self.patience.pause_s))
        self.last_s = now

    def excuse(self, stalled_s: float) -> None:
        """The watcher itself was stalled for so long: that is not the peer's silence."""
        if stalled_s > 0.0:
            self.last_s += stalled_s

    def silence_s(self, now: float) -> float:
        """Since the newest sign of life."""
        return max(now - self.last_s, 0.0)

    def left_s(self, now: float) -> float:
        """Time until a continued silence is death, whatever was learnt; 0 when it is."""
        return max(self.last_s + self.patience.hard_s - now, 0.0)

    def phi(self, silence_s: float) -> float:
        """Level of suspicion after `silence_s`: 0 (none) to `MAX_PHI`."""
        later = 0.5 * math.erfc((silence_s - self._mean_s) / (self._deviation_s * math.sqrt(2.0)))
        return MAX_PHI if later < 10**-MAX_PHI else max(-math.log10(later), 0.0)

    def suspicion(self, now: float) -> float:
        """Phi of the silence until `now`."""
        return self.phi(self.silence_s(now))

    def verdict(self, now: float) -> Verdict:
        """The verdict at `now`."""
        silence_s = self.silence_s(now)
        if silence_s >= self.patience.hard_s:
            return Verdict.DEAD
        if silence_s <= self._mean_s:  # phi is at most log10(2)
            return Verdict.ALIVE
        if silence_s > self.patience.pause_s and self.phi(silence_s - self.patience.pause_s) >= DEAD_PHI:
            return Verdict.DEAD
        return Verdict.SUSPECT if self.phi(silence_s) >= SUSPECT_PHI else Verdict.ALIVE

    def _learn(self, interval_s: float) -> None:
        """Mean and deviation of the newest `WINDOW` intervals, in the same time however many they are."""
        intervals, newest = self._intervals, int(interval_s * NS)
        intervals.append(newest)
        self._sum += newest
        self._squares += newest * newest
        if len(intervals) > WINDOW:
            oldest = intervals.popleft()
            self._sum -= oldest
            self._squares -= oldest * oldest
        count, total = len(intervals), self._sum
        deviation_s = math.sqrt(count * self._squares - total * total) / (count * NS)
        self._mean_s = total / (count * NS)
        self._deviation_s = max(deviation_s, self.patience.beat_s * MIN_DEVIATION)
