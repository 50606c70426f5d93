"""A trainer of two processes: one rank killed in a step, one frozen.

The run continues, and its instances pull the changes.
"""

import signal

import pytest
from real_runs import OPEN_ENDED, MakeRun, RealRun

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.cluster import StepTrained
from gleaner.actors.rollout.state.events import GroupsTaken
from gleaner.actors.training.history import Restart
from gleaner.chaos.run_processes import Proc, is_alive
from gleaner.rlctl.audit.invariants import step_of
from gleaner.rlctl.audit.run_files import gather
from gleaner.supervisor import JournalError
from gleaner.supervisor.journal.file import read_streams

pytestmark = [pytest.mark.alone, pytest.mark.realprocess, pytest.mark.timeout(900)]

SETTINGS = [
    OPEN_ENDED,
    "training.backend=fsdp2",
    "training.processes=2",
    "training.exchange_s=4",
    "training.learning_rate=1e-6",  # little of a version differs from the one before
    "rollout.max_new_tokens=128",
    "engine.slots=4",  # many waves a step: its groups are completed one after the other
    "fleet.n_prem_max=1",
]


def begun(run: RealRun) -> bool:
    """Whether a trainer was given a part of an unfinished step."""
    try:
        journal = run.run.head / "journal" / run.run.id / "rollout.sqlite"
        messages = read_streams(journal, [MANAGER])[MANAGER].messages
    except JournalError:
        return False
    taken = [one.batch for one in messages if isinstance(one, GroupsTaken)]
    return bool(taken) and step_of(taken[-1]) not in (None, *run.steps())


def strike(run: RealRun, number: signal.Signals) -> list[Restart]:
    """A signal to rank 1 in the middle of a step: the whole gang is replaced, and another step ends.

    Returns the report of it in the history.
    """
    run.wait(lambda: begun(run), "a step that has begun")
    gang: list[Proc] = [run.one("trainer"), run.one("rank-1")]
    step, seen = max(run.steps(), default=0), len(run.look())
    gang[1].signal(number)
    run.wait(lambda: not any(is_alive(proc.process) for proc in gang), "the end of the gang")
    for proc in gang:
        run.replaced(proc)
    run.until_step_after(step, f"after {number.name}")
    return [one for one in run.look()[seen:] if isinstance(one, Restart)]


@pytest.mark.long
def test_gang_continues_after_losing_a_rank_mid_step(make_run: MakeRun) -> None:
    run = make_run(*SETTINGS)
    run.start()
    run.wait(lambda: run.steps(), "the first step")

    killed = {one.actor: one.cause for one in strike(run, signal.SIGKILL)}
    assert killed == {"reserved-1/rank-1": "SIGKILL", "reserved-1/trainer": "with rank-1: SIGKILL"}
    frozen = {one.actor: one.cause for one in strike(run, signal.SIGSTOP)}
    assert frozen.keys() == {"reserved-1/rank-1", "reserved-1/trainer"}
    assert frozen["reserved-1/trainer"].startswith("exit 7: ")
    assert "rank 1" in frozen["reserved-1/trainer"], "the report names the process that did not answer"

    run.stops_whole()
    trained = gather(run.run.path, run.run.config(), complete=False).trained
    steps = [event.step for event in trained if isinstance(event, StepTrained)]
    assert len(steps) >= 3, "the first, and one after each signal"
    assert steps == list(range(1, len(steps) + 1)), "no step was skipped or done twice"
    pulled = run.report.weights
    assert pulled is not None
    assert pulled.delta_versions > 0, "versions of two ranks are pulled as deltas"
    assert pulled.delta_bytes < pulled.image_bytes / 2
