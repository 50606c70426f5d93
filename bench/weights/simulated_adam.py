"""Simulated weights under Adam: consecutive versions of a large model's weights.

Owns the model of gradients. Masters are float32, normal with `SPREAD` around zero; the gradient of an element
is noise around a drift of its own, times a scale of its own and of its row, so that some elements always move
further than others. The published value is the bfloat16 next to the master (ties to even), as trainers with
float32 masters publish it.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

SPREAD = 0.02
"""Standard deviation of the weights."""
SIGNAL = 0.1
"""Drift of the gradient of an element over its noise: the batches of RL agree on little."""
BETAS, EPSILON = (0.9, 0.999), 1e-8
ROW = 1024  # elements that share a scale


def versions(learning_rate: float, elements: int, steps: int, seed: int) -> Iterator[NDArray[np.uint16]]:
    """The published weights before the first step and after each, the bits of bfloat16, uint16 [elements]."""
    rng = np.random.default_rng(seed)

    def normal() -> NDArray[np.float32]:
        return rng.standard_normal(elements, np.float32)

    masters = normal() * np.float32(SPREAD)
    scale = np.exp(normal())
    scale *= np.repeat(np.exp(rng.standard_normal(-(-elements // ROW), np.float32)), ROW)[:elements]
    drift = normal() * np.float32(SIGNAL)
    first, second = np.zeros_like(masters), np.zeros_like(masters)
    yield bfloat16(masters)
    for step in range(1, steps + 1):
        gradient = (normal() + drift) * scale
        first += np.float32(1 - BETAS[0]) * (gradient - first)
        second += np.float32(1 - BETAS[1]) * (gradient * gradient - second)
        rate = np.float32(learning_rate / (1 - BETAS[0] ** step))
        spread = np.sqrt(second / np.float32(1 - BETAS[1] ** step)) + np.float32(EPSILON)
        masters -= rate * first / spread
        yield bfloat16(masters)


def bfloat16(weights: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even; for finite numbers."""
    bits = weights.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(
        np.uint16
    )
