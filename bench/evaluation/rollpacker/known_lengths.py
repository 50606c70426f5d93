"""A plain rollout whose lengths are known before it runs: what that would gain, by the costs of engines.

Owns the bound and its table. The requests of a whole batch are placed once, at its begin, and never move: as
many on each engine, or by what is known of their lengths, the longest first and each where the fewest tokens
are. Beside them stands an even load at all times, which moves of running requests approach. Pure.
"""

import random
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from bench.evaluation.cells import Cell
from bench.evaluation.rollpacker.setups import MODELS, law_of, setting
from bench.evaluation.rollpacker.wide_tail import GROUPS, SAMPLES, Engines, Floats
from gleaner.sim.models.engine_cost import engine_cost
from gleaner.sim.models.host_devices import HostDevices

Indices = NDArray[np.int64]

HARD = (5, 20)
SEEDS = (1, 2, 3)

KNOWN: Mapping[str, Callable[[Floats], Floats]] = {
    "first response of the group": lambda lengths: np.repeat(lengths[:, 0], SAMPLES),
    "mean of the group": lambda lengths: np.repeat(lengths.mean(axis=1), SAMPLES),
    "every length": lambda lengths: lengths.ravel(),
}
"""What is known of each request's length, from the lengths of the groups [groups, samples]. The first
response costs nothing here; an earlier epoch gives the mean of a problem's responses."""


def batch(model: str, hard: int, seed: int) -> Floats:
    """Lengths of a batch, by group [groups, samples]. hard: per cent of hard prompts."""
    limit, rng = MODELS[model].limit, random.Random(seed)
    law = law_of(limit, hard)
    prompts = [rng.getrandbits(60) for _ in range(GROUPS)]
    return np.array(
        [[law.length(rng.getrandbits(60), prompt, limit) for _ in range(SAMPLES)] for prompt in prompts],
        np.float64,
    )


def placed(known: Floats, count: int) -> list[Indices]:
    """The requests of each of `count` engines, as indices: the longest known one first, each where the fewest
    tokens are."""
    loads = [0.0] * count
    places: list[list[int]] = [[] for _ in range(count)]
    for index in np.argsort(-known, kind="stable"):
        least = min(range(count), key=loads.__getitem__)
        places[least].append(int(index))
        loads[least] += float(known[index])
    return [np.array(place, np.int64) for place in places]


def seconds(engines: Engines, ends: Floats, places: list[Indices]) -> float:
    """Seconds until the last engine has decoded its own requests."""
    one = Engines(engines.cost, 1)
    return max(one.until(ends[place], np.zeros(len(place)), 0)[0] for place in places if len(place))


def gains(model: str, hard: int) -> tuple[float, list[float]]:
    """Seconds of a rollout with as many requests on each engine, and its change with what `KNOWN` names, and
    with an even load at all times; means of the seeds."""
    made = MODELS[model]
    rig = setting(Cell(kind="colocated", model=model, variant="off", seed=1, steps=1))
    device = HostDevices("h100", made.tp, made.tp, rig.reserved.assumed)
    engines = Engines(engine_cost(rig.job_model.shape, device), made.devices // made.tp)
    rows = []
    for seed in SEEDS:
        lengths = batch(model, hard, seed)
        ends = lengths.ravel()
        counted = [np.arange(first, len(ends), engines.count) for first in range(engines.count)]
        taken = [seconds(engines, ends, counted)]
        taken += [seconds(engines, ends, placed(known(lengths), engines.count)) for known in KNOWN.values()]
        rows.append([*taken, engines.until(ends, np.zeros_like(ends), 0)[0]])
    means = np.mean(np.array(rows), axis=0)
    return float(means[0]), [float(one / means[0] - 1) for one in means[1:]]


def known_text() -> str:
    """The change for every model and share of hard prompts."""
    rows = [
        f"| model | hard prompts | as many on each engine | {' | '.join(KNOWN)} | even at all times |",
        f"|---|---:|---:|{'---:|' * (len(KNOWN) + 1)}",
    ]
    for model in MODELS:
        for hard in HARD:
            begin_s, changes = gains(model, hard)
            cells = " | ".join(f"{change:+.1%}" for change in changes)
            rows.append(f"| {model} | {hard} % | {begin_s:.0f} s | {cells} |")
    return "\n".join(rows)
