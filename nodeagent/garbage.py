"""How often a process looks for cyclic garbage.

Python's collector begins again after each 700 new objects, and now and then goes through all of them. A
process of ours has a few hundred thousand that live until its end, most of them of the modules that it
imported: on the path of reward items a third of the processor time of the actors went into that
(`bench.reward.path`).

What is there at the start is no garbage, so the collector need not look at it. Little of what comes later is
cyclic, so it may wait for more of it: `NEW_OBJECTS` are a few megabytes.
"""

import gc

NEW_OBJECTS = 10_000
"""Before the youngest are looked through; ten times as many for each older generation."""


def look_rarely() -> None:
    """For this process, from now on."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 10, 10)
