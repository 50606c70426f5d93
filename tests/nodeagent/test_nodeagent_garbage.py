"""A process leaves what it began with to itself, and does not look for garbage after every few objects."""

import subprocess
import sys

REPORTS = """
import gc, sys
from gleaner.nodeagent.host import run_process

async def main(stop):
    print(gc.isenabled(), gc.get_freeze_count() > 10_000, gc.get_threshold()[0], flush=True)
    return 0

sys.exit(run_process(main, "reports"))
"""

DROPS_CYCLES = """
import sys, weakref
from gleaner.nodeagent.host import run_process

class Cycle:
    def __init__(self):
        self.own = self

async def main(stop):
    first = weakref.ref(Cycle())
    kept = 0
    while first() is not None:
        Cycle()
        kept += 1
    print(kept, flush=True)
    return 0

sys.exit(run_process(main, "drops"))
"""


def _output(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.split()


def test_process_looks_rarely_for_garbage_when_it_runs() -> None:
    enabled, frozen, new_objects = _output(REPORTS)

    assert (enabled, frozen) == ("True", "True")
    assert int(new_objects) > 700, "Python's own number"


def test_process_still_frees_cycles_when_it_looks_rarely() -> None:
    (kept,) = _output(DROPS_CYCLES)

    assert int(kept) < 20_000
