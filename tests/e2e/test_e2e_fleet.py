"""Instances that leave, with notice or without, or hang and return.

The run continues, token for token.
"""

import signal
from pathlib import Path

import pytest
from real_runs import OPEN_ENDED, RELEASED_STEPS, MakeRun

pytestmark = [pytest.mark.alone, pytest.mark.realprocess, pytest.mark.timeout(900)]

FLOWING = 200
ALIVE = ["liveness.dead_s=3"]


def trace(folder: Path, *events: str) -> str:
    """A setting that names a trace of availability with these events."""
    file = folder / "trace.csv"
    file.write_text("\n".join(["t_seconds,event,instance_id", *events, ""]))
    return f"fleet.trace={file}"


@pytest.mark.long
def test_noticed_instance_drains_and_run_continues_colocated(make_run: MakeRun, tmp_path: Path) -> None:
    added = [f"0,add,spot-{number}" for number in (1, 2, 3)]
    events = ["3,notice,spot-1", "5,remove,spot-2", "6,remove,spot-3", "33,remove,spot-1"]
    run = make_run(OPEN_ENDED, "fleet.n_prem_max=3", trace(tmp_path, *added, *events))
    run.start()
    run.wait(lambda: run.events("killed") == 2 and run.events("left") == 1, "the end of all three")
    alone = len(run.steps()) + 2  # the current step still has tokens of theirs
    run.until_step_after(alone + RELEASED_STEPS, "without the instances")
    run.stops_whole()

    assert [run.events(event, "spot-1") for event in ("noticed", "drained", "left", "killed")] == [1, 1, 1, 0]
    assert not [line for line in run.warnings() if "without handing over" in line]
    assert (run.report.preemptions.noticed, run.report.preemptions.killed) == (1, 2)
    assert run.report.requests.migrated > 0
    assert run.incarnations("reserved-1/engine", alone)
    for node in ("spot-1", "spot-2", "spot-3"):
        assert run.incarnations(f"{node}/engine", alone) == []


@pytest.mark.long
def test_hung_instance_is_fenced_and_works_again(make_run: MakeRun) -> None:
    run = make_run(OPEN_ENDED, *ALIVE)
    run.start()
    run.wait(lambda: run.steps(), "the first step")
    run.until_tokens_flow(FLOWING)
    engine = run.one("engine")
    engine.signal(signal.SIGSTOP)
    step = run.steps()[-1]
    run.wait(lambda: run.steps()[-1] >= step + 2, "two steps without it")
    assert engine.alive()
    engine.signal(signal.SIGCONT)
    back = run.steps()[-1] + 2
    run.until_step_after(back + RELEASED_STEPS, "with the instance that came back")
    run.stops_whole()

    first, *later = run.incarnations(f"{engine.node}/engine")
    assert later, "it never worked again"
    assert first not in run.incarnations(f"{engine.node}/engine", back)
