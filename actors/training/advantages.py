"""GRPO advantages: how much better a sample is than its group.

Pure, without torch. Source: DeepSeekMath, arXiv:2402.03300.
"""

from collections.abc import Sequence

DEVIATION_FLOOR = 1e-4
"""Added to a group's standard deviation: groups with equal rewards get no gradient instead of noise."""


def group_advantages(rewards: Sequence[float]) -> list[float]:
    """How much better each sample is than its group, in standard deviations of the group.

    Equal rewards give zeros, exactly. Raises `ValueError` for a group of one, which has nothing to compare.
    """
    if len(rewards) < 2:
        raise ValueError(f"a group needs at least two samples, got {len(rewards)}")
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    variance = sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)
    return [(reward - mean) / (variance**0.5 + DEVIATION_FLOOR) for reward in rewards]
