"""Parts of a step: every second of a run's steps is in one part, under any kill."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from gleaner.actors.training.account import PARTS
from gleaner.actors.training.loop import STEP_POLL_S
from gleaner.actors.training.records import AnyRecord, Phase, Restart, Run, Step, StepPath
from gleaner.actors.training.step_path import STAGES
from gleaner.configs.load import load
from gleaner.rlctl.report.model import report_of
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.run_setup import HEAD, RESERVED, RunSetup

STEPS = 4
SETS = [
    f"job.steps={STEPS}",
    "job.eval_every=2",
    "task.heldout_problems=8",
    "fleet.trace=",
    "engine.slots=16",
]
ROUNDING_S = 1e-6
LITTLE_S = 0.5
"""Planning, submission and messages of a step: some 0.2 s."""
UNHEARD_S = LITTLE_S + STEP_POLL_S
"""The same where the message that a step is done went to the controller's previous life."""

Fault = Callable[[SimCluster, FaultInjector], object]


def trainer(cluster: SimCluster, broken: FaultInjector) -> object:
    return broken.kill_process(RESERVED, "trainer")


def manager(cluster: SimCluster, broken: FaultInjector) -> object:
    return broken.kill_process(HEAD, "rollout")


def controller(cluster: SimCluster, broken: FaultInjector) -> object:
    return broken.crash_actor(HEAD, "agent", "controller")


def reserved_host(cluster: SimCluster, broken: FaultInjector) -> object:
    cluster.loop.call_later(3.0, lambda: broken.start_host(RESERVED))
    return broken.kill_host(RESERVED)


def resume(cluster: SimCluster, broken: FaultInjector) -> object:
    """Everything is stopped at once and resumed later."""
    for host in (HEAD, RESERVED):
        cluster.loop.call_later(20.0, lambda name=host: broken.start_host(name))
    return broken.kill_host(HEAD) and broken.kill_host(RESERVED)


def steps_with(*faults: tuple[int, float, Fault]) -> list[AnyRecord]:
    """The history of a run in which each fault comes so long after the end of that step."""
    cluster = SimCluster(RunSetup(load("quickstart", SETS), seed=7))
    broken = FaultInjector(cluster)
    due = list(faults)
    done = []

    def look() -> None:
        ended = sum(isinstance(record, Step) for record in cluster.history)
        while (
            due
            and ended >= due[0][0]
            and any(isinstance(record, Phase) and record.phase == "steps" for record in cluster.history)
        ):
            _, after_s, fault = due.pop(0)
            cluster.loop.call_later(after_s, lambda fault=fault: done.append(fault(cluster, broken)))
        if due:
            cluster.loop.call_later(0.05, look)

    look()
    outcome = cluster.run()
    assert outcome.ended == "done", outcome.reason
    assert done == [True] * len(faults), "every fault hit a process"
    return outcome.history


def check(history: list[AnyRecord], little_s: float = LITTLE_S) -> list[Step]:
    """Check the law in the records and in the report made of them; returns the steps."""
    steps = [record for record in history if isinstance(record, Step)]
    assert [step.step for step in steps] == list(range(1, STEPS + 1))
    begin_s = next(record.t_s for record in history if isinstance(record, Phase) and record.phase == "steps")
    assert steps[0].t_s - steps[0].step_s == pytest.approx(begin_s, abs=ROUNDING_S)
    for before, step in pairwise(steps):
        assert step.t_s - step.step_s == pytest.approx(before.t_s, abs=ROUNDING_S), "no gap, no overlap"
    times = report_of(history, None).step_times
    whole_s = sum(time.part_s(part) for time in times for part in (*PARTS, "other"))
    assert whole_s == pytest.approx(steps[-1].t_s - begin_s, abs=ROUNDING_S)
    assert all(time.part_s(part) >= 0 for time in times for part in (*PARTS, "other"))
    assert all(time.other_s < little_s for time in times), [time.other_s for time in times]
    return steps


def check_paths(history: list[AnyRecord], steps: list[Step]) -> list[StepPath]:
    """The critical path of a step is as long as the step."""
    paths = [record for record in history if isinstance(record, StepPath)]
    of_step = {step.step: step for step in steps}
    for path in paths:
        assert list(path.stages) == list(STAGES)
        assert sum(path.stages.values()) == pytest.approx(of_step[path.step].step_s, abs=LITTLE_S)
    return paths


def test_step_parts_sum_to_training_time_without_recovery() -> None:
    history = steps_with()
    steps = check(history)
    paths = check_paths(history, steps)
    assert [path.step for path in paths] == [step.step for step in steps], "every step was measured"
    for path, step in zip(paths, steps, strict=True):
        assert sum(path.stages.values()) == pytest.approx(step.step_s, abs=ROUNDING_S)
        assert path.stages["evaluation"] == pytest.approx(step.evaluation_s, abs=ROUNDING_S)
    assert sum(step.recovery_s for step in steps) == 0
    assert [step.step for step in steps if step.evaluation_s > 0] == [3], "an evaluation after step 2"


@pytest.mark.parametrize(
    ("fault", "after_s", "least_s"),
    [(trainer, 0.9, 2.0), (manager, 0.4, 0.3), (controller, 0.9, 0.0005), (reserved_host, 0.9, 5.0)],
)
def test_step_parts_sum_to_training_time_after_kills(fault: Fault, after_s: float, least_s: float) -> None:
    """Kill between two steps, and in the middle of the second step after that, which needs the killed
    process."""
    history = steps_with((1, 0.01, fault), (3, after_s, fault))
    steps = check(history, UNHEARD_S if fault is controller else LITTLE_S)
    check_paths(history, steps)
    hit = [step.step for step in steps if step.recovery_s >= least_s]
    assert hit in ([2, 4], [1, 2, 4]), [step.recovery_s for step in steps]


def test_step_parts_sum_to_training_time_over_resume() -> None:
    history = steps_with((1, 0.5, trainer), (1, 2.0, resume))
    steps = check(history)
    assert sum(isinstance(record, Run) for record in history) == 2
    assert steps[1].recovery_s > 2.0, "the work before the resume, and the start after it"
    restarts = [record for record in history if isinstance(record, Restart)]
    assert [one.actor for one in restarts] == ["reserved-1/trainer"]
    assert report_of(history, None).step_times[1].restarts == 1
