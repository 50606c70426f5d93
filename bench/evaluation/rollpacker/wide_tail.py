"""The tail of a long round on one wide engine: what it would gain, by the simulator's costs of engines.

Owns the bound and its table. A long round of RollPacker's job is decoded on its engines under an even load;
when a share of its requests is left, they go to one engine of eight devices, which has the weights already.
Only their prefill and their decoding there are counted. Pure.
"""

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.evaluation.cells import Cell
from bench.evaluation.rollpacker.setups import MODELS, PROMPT_TOKENS, law_of, setting
from gleaner.sim.models.engine_cost import EngineCost, engine_cost
from gleaner.sim.models.host_devices import HostDevices

SHARES = (0.05, 0.1, 0.2, 0.3)
GROUPS, SAMPLES, FACTOR = 128, 8, 1.25
SLOTS, WIDE = 256, 8
HARD = 5
STRIDE = 64
"""Tokens that all requests get at a time."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Engines:
    """Engines of equal width that share requests evenly."""

    cost: EngineCost
    count: int

    def until(self, ends: Floats, made: Floats, left: float) -> tuple[float, Floats]:
        """Decode until so many requests are left. ends, made: tokens of each request, at its end and so far.
        Seconds, and the tokens made then."""
        seconds, made = 0.0, made.copy()
        while (alive := made < ends).sum() > left:
            tokens = min(STRIDE, float((ends - made)[alive].min()))
            each = max(1.0, alive.sum() / self.count)
            rows = min(each, SLOTS)
            context = rows * (PROMPT_TOKENS + float(made[alive].mean()))
            seconds += tokens * self.cost.decode(rows, context) * each / rows
            made[alive] += tokens
        return seconds, made


def long_round(model: str) -> Floats:
    """Lengths of the requests of a long round: the longest groups of a period."""
    limit, rng = MODELS[model].limit, random.Random(1)
    law = law_of(limit, HARD)
    groups = []
    for _ in range(round(GROUPS * FACTOR / (FACTOR - 1))):
        prompt = rng.getrandbits(60)
        groups.append([law.length(rng.getrandbits(60), prompt, limit) for _ in range(SAMPLES)])
    groups.sort(key=max)
    return np.array([length for group in groups[-GROUPS:] for length in group], np.float64)


def change(model: str, share: float) -> tuple[float, int, float | None]:
    """Seconds of decoding of a long round on its own engines; the requests that are left when at most this
    share is; and the change of its seconds with these on one wide engine, None where none is left."""
    made = MODELS[model]
    rig = setting(Cell(kind="colocated", model=model, variant="tail", seed=1, steps=1))
    shape, assumed = rig.job_model.shape, rig.reserved.assumed
    own = Engines(engine_cost(shape, HostDevices("h100", made.tp, made.tp, assumed)), made.devices // made.tp)
    wide = Engines(engine_cost(shape, HostDevices("h100", WIDE, WIDE, assumed)), 1)
    ends = long_round(model)
    begun = np.zeros_like(ends)
    whole_s, _ = own.until(ends, begun, 0)
    before_s, so_far = own.until(ends, begun, share * len(ends))
    alive = so_far < ends
    if not alive.any():
        return whole_s, 0, None
    contexts = PROMPT_TOKENS + so_far[alive]
    prefill_s = sum(wide.cost.prefill(float(one), float(one) ** 2 / 2) for one in contexts)
    after_s, _ = wide.until(ends[alive], so_far[alive], 0)
    return whole_s, int(alive.sum()), (before_s + prefill_s + after_s) / whole_s - 1


def wide_text() -> str:
    """The change for every model and share."""
    rows = [
        "| model | long round decodes for | requests at the limit "
        f"| {' | '.join(f'last {share:.0%} moved' for share in SHARES)} |",
        f"|---|---:|---:|{'---:|' * len(SHARES)}",
    ]
    for model, made in MODELS.items():
        ends = long_round(model)
        cells = []
        for share in SHARES:
            whole_s, left, off = change(model, share)
            cells.append("none is left" if off is None else f"{left} requests: {off:+.0%}")
        limit = float((ends >= made.limit).mean())
        rows.append(f"| {model} | {whole_s:.0f} s | {limit:.0%} | {' | '.join(cells)} |")
    return "\n".join(rows)
