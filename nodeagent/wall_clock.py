"""The wall clock of a host."""

import time


def wall_ms() -> int:
    """The wall clock in milliseconds; incarnations are derived from it."""
    return time.time_ns() // 1_000_000
