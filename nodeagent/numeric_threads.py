"""Environment of numerical libraries: how many threads they start, and how these wait for each other.

They read it when they are loaded.
"""

import os
from collections.abc import Mapping

SPINS = 3000
"""Turns for which a thread of OpenMP waits for the others before it sleeps. With the library's 300,000 a
trainer of two threads takes four times as long where two other processes want the cores; with these it takes
1.4 times as long, and on idle cores no longer than before."""
DEFAULTS: Mapping[str, str] = {"GOMP_SPINCOUNT": str(SPINS)}
"""Variables that the user's environment overrides."""


def thread_limits(count: int) -> dict[str, str]:
    """Variables for `count` threads; they override the user's."""
    return {"OMP_NUM_THREADS": str(count), "MKL_NUM_THREADS": str(count)}


def environment(count: int) -> dict[str, str]:
    """This process's environment, with `count` threads."""
    return {**DEFAULTS, **os.environ, **thread_limits(count)}
