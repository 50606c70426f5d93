"""Width model: predicted round of each width, from what was measured at some widths.

Pure. The pace of an engine at a width that was not run yet follows from one that was:

- weights are read by all devices of a copy, so their time falls with the width; it is their size in tokens of
  the cache times the time of reading such a token; the rest of a step stays;
- the cache of a copy is the memory of its devices without the weights, which are there once;
- from a width of 1 up a step has all-reduces.

Heads of keys and values are taken to be as many as the widest width, or more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs

from gleaner.actors.cluster.step_model import Machines, Work, predict
from gleaner.actors.protocol.throughput import EnginePace

REDUCES_S = 1e-3
"""Assumed all-reduces of a decode step: two in each of 48 layers, of 10 us (`sim/models/hardware.toml`)."""
WINDOWS = 7  # seeding windows that are tried


def pace_at(known: EnginePace, width: int, wanted: int) -> EnginePace | None:
    """The pace of an engine of the wanted width, from that of another one; None where the weights leave no
    space for a cache."""
    if width == wanted:
        return known
    factor = width / wanted
    weights_s = min(known.weight_tokens * known.context_s, known.step_s)
    reduces_s = REDUCES_S * ((wanted > 1) - (width > 1))
    cache_tokens = 0
    if known.cache_tokens:
        cache_tokens = int((known.cache_tokens + known.weight_tokens) / factor - known.weight_tokens)
        if cache_tokens <= 0:
            return None
    return structs.replace(
        known,
        step_s=max(0.0, known.step_s - weights_s + reduces_s) + weights_s * factor,
        context_s=known.context_s * factor,
        prefill_token_s=known.prefill_token_s * factor,
        cache_tokens=cache_tokens,
    )


def paces_of(measured: Mapping[int, EnginePace], widths: Sequence[int]) -> dict[int, EnginePace]:
    """The pace at each width: as measured, else from the nearest measured one; none where the model does not
    fit."""
    found = {}
    for wanted in widths:
        nearest = min(measured, key=lambda width: (abs(np.log2(width / wanted)), width), default=None)
        pace = pace_at(measured[nearest], nearest, wanted) if nearest is not None else None
        if pace is not None:
            found[wanted] = pace
    return found


def round_times(
    work: Work, machines: Machines, paces: Mapping[int, EnginePace], devices: int, instances: int
) -> dict[int, float]:
    """Predicted seconds of a round by width of the preemptible instances, which have so many devices each;
    each with the best of some windows. Widths whose cache does not hold the longest request have none."""
    found = {}
    longest = max(map(max, work.lengths)) + work.prompt_tokens
    for width, pace in paces.items():
        if 0 < pace.cache_tokens < longest:
            continue
        there = replace(machines, preemptible=pace, instance_engines=float(devices // width))
        alone_s = float(predict(work, there, np.zeros(1), np.zeros(1)).rolled_s[0])
        windows_s = np.linspace(0.0, alone_s, WINDOWS)
        end_s = float(predict(work, there, windows_s, np.full(WINDOWS, float(instances))).end_s.min())
        if np.isfinite(end_s):
            found[width] = end_s
    return found
