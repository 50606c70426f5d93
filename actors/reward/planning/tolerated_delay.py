"""D of DistRS: the delay of a batch that a plan tolerates."""

DELAY_SHARE = 0.01
"""A batch is never delayed by a larger share of its duration: a short one shall not pay seconds."""


def tolerated_s(max_delay_s: float, duration_s: float) -> float:
    """max_delay_s: of the settings. duration_s: from the batch's beginning until it can be complete."""
    return min(max_delay_s, DELAY_SHARE * duration_s)
