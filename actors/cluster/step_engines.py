"""Engines of a predicted step (`step_model`): how many of each kind, their capacity and their times.

Pure. Arrays hold all candidates of a prediction.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gleaner.actors.protocol.throughput import EnginePace

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Counts = NDArray[np.int64]

PREFILLED_IN_A_STEP = 256.0
"""Tokens whose prefill takes as long as a decode step with an empty cache, until that was measured: the
computation of a device while it reads its memory once (H100 295 operations a byte, H200 206, A100 153, L40S
419, at most)."""
PREFILL_OFF = 4.0
"""A measured prefill is accepted within this factor of that: it is estimated from turns that decode too,
which is rough for short windows."""


class Engines:
    """The engines of both kinds, for every candidate: their numbers and decode times. Arrays of kinds x
    candidates, the reserved kind first."""

    def __init__(self, paces: Sequence[EnginePace], factor: float, count: Floats, weight: float) -> None:
        self.step_s = np.array([[pace.step_s * factor] for pace in paces])
        self.row_s = np.array([[pace.row_s * factor] for pace in paces])
        self.context_s = np.array([[pace.context_s * factor] for pace in paces])
        self.prefill_s = np.array([[factor * _prefill_token_s(pace)] for pace in paces])
        self.count = count
        self.there = count > 0
        self.least = np.maximum(count, 1e-9)
        room = [float(pace.cache_tokens) if pace.cache_tokens > 0 else math.inf for pace in paces]
        rows = [float(pace.slots) if pace.slots > 0 else math.inf for pace in paces]
        self.room = np.zeros_like(count)  # in tokens and requests of the sample
        self.rows = np.zeros_like(count)
        for kind, there in enumerate(self.there):
            self.room[kind, there] = room[kind] * count[kind, there] / weight
            self.rows[kind, there] = rows[kind] * count[kind, there] / weight
        self.weight = weight
        self.share = weight / self.least  # of an engine, for each request of the sample
        self.stall_s = np.zeros_like(count)  # of its engines, by prefills
        self.stalls = False  # some of them are stalled

    def halve(self, which: Bools) -> None:
        """Half of the reserved engines of these candidates are gone."""
        for of in (self.count, self.room, self.rows):
            of[0, which] /= 2
        self.least = np.maximum(self.count, 1e-9)
        self.share = self.weight / self.least

    def keep(self, which: Bools) -> None:
        """The engines of the other candidates are not needed any more."""
        for name in ("count", "there", "least", "room", "rows", "share", "stall_s"):
            setattr(self, name, getattr(self, name)[:, which])

    def token_s(self, rows: Floats, context: Floats) -> Floats:
        """Seconds of a token of all decoded requests; of the sample, all engines together."""
        seconds: Floats = self.step_s + (self.row_s * rows + self.context_s * context) * self.share
        return np.maximum(seconds, 1e-9, out=seconds)


def _prefill_token_s(pace: EnginePace) -> float:
    """Seconds of the prefill of a token, near what is usual."""
    usual_s = pace.step_s / PREFILLED_IN_A_STEP
    measured_s = pace.prefill_token_s or usual_s
    return min(max(measured_s, usual_s / PREFILL_OFF), usual_s * PREFILL_OFF)
