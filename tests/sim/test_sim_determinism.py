"""Determinism: one seed gives one history in every process.

The hash seed and earlier runs in the same process have no effect.
"""

import os
import subprocess
import sys
from pathlib import Path

from small_system import SmallSystem, histories
from whole_system import history

HERE = Path(__file__).parent
SEEDS = ["3", "4"]


def in_another_interpreter(script: str, hash_seed: str) -> list[str]:
    env = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, str(HERE / script), *SEEDS],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


def test_history_is_independent_of_the_hash_seed() -> None:
    first, second = (in_another_interpreter("small_system.py", seed) for seed in ("1", "4242"))
    assert len(first) == len(SEEDS)
    assert first == second
    here = histories([9, 5, *map(int, SEEDS)])  # other seeds before it leave no state behind
    assert [str(history) for history in here[2:]] == first
    assert here[2].hash != here[3].hash


def test_faulty_job_has_the_same_history_everywhere() -> None:
    first, second = (in_another_interpreter("whole_system.py", seed) for seed in ("1", "4242"))
    assert len(set(first)) == len(SEEDS)
    assert all(line.startswith("done 5 faults") for line in first), first
    assert first == second
    assert history(int(SEEDS[1])) == first[1]


def test_small_system_really_counts_dies_and_recovers() -> None:
    history = SmallSystem(1).run()
    assert history.faults >= 5
    assert history.counted > 100
    assert history.findings == 0
    # Each remembered number was counted; one number of each client may be counted and not yet remembered.
    assert history.counted - 2 <= history.remembered <= history.counted
