"""Step times measured by a simulated cluster, where they are known by construction.

Every response is equally long and gets a slot at once, so all instances end together, and nothing is trained
before: the trainer waits until then, and the instances wait from then to the step's end.
"""

import pytest

from gleaner.actors.protocol.cluster import PlanNext
from gleaner.actors.protocol.rollout import StepEnded, SubmitBatch
from gleaner.actors.protocol.step_times import Seen as SeenOfStep
from gleaner.actors.protocol.step_times import StepTimes
from gleaner.actors.training.records import Step
from gleaner.configs.load import load
from gleaner.sim.cluster import SimCluster
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.job_model import JobModel
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.shapes import model_shape
from gleaner.sim.run_setup import RunSetup

HOSTS, ENGINES, LENGTH = 2, 4, 700
SETS = [
    "job.steps=2", "task.heldout_problems=8", "rollout.prompts=8", "rollout.samples=4", "fleet.trace=",
    f"fleet.n_prem_max={HOSTS}", "seeding.initial_s=0", "seeding.max_s=0", "rollout.max_pending=64",
    f"rollout.max_new_tokens={2 * LENGTH}",
]  # fmt: skip


class Watched:
    """The planned times of the last step, and when its batch began and ended at the manager."""

    def __init__(self) -> None:
        job_model = JobModel(model_shape("quickstart"), LengthLaw(float(LENGTH), 0.0, 0.0))
        reserved = HostDevices("cpu_core", ENGINES, 1)
        self.cluster = SimCluster(
            RunSetup(load("quickstart", SETS), seed=7, job_model=job_model, reserved=reserved)
        )
        self.times: list[StepTimes] = []
        self.begin_s = self.end_s = 0.0
        self.cluster.watch(self._look)
        self.outcome = self.cluster.run()
        self.step = [record for record in self.outcome.history if isinstance(record, Step)][-1]

    def _look(self, seen: ObservedMessage) -> None:
        message, now_s = seen.message, self.cluster.loop.now_s
        if isinstance(message, SubmitBatch) and message.batch.batch == "step-2":
            self.begin_s = now_s
        elif isinstance(message, StepEnded) and message.batch == "step-2":
            self.end_s = now_s
        elif isinstance(message, PlanNext) and message.times is not None:
            self.times.append(message.times)

    @property
    def last(self) -> tuple[StepTimes, SeenOfStep]:
        times = self.times[-1]
        assert times.seen is not None
        return times, times.seen


@pytest.fixture(scope="module")
def watched() -> Watched:
    return Watched()


def test_step_lasts_from_batch_to_weight_publication(watched: Watched) -> None:
    times, seen = watched.last
    assert watched.outcome.ended == "done"
    assert seen.step_s == pytest.approx(watched.end_s - watched.begin_s, abs=0.05)
    parts_s = seen.seeding_s + times.train_wait_s + times.train_s + watched.step.weights_s
    assert seen.step_s == pytest.approx(parts_s, abs=0.05)


def test_instances_wait_from_last_response_to_step_end(watched: Watched) -> None:
    times, seen = watched.last
    assert times.remote_wait_s == pytest.approx(seen.step_s - seen.rolled_s, abs=0.01)
    # From the last response on: scoring, then all training and publishing.
    assert times.train_s + watched.step.weights_s <= times.remote_wait_s <= times.train_s + 0.5


def test_trainer_waits_for_responses_after_its_window(watched: Watched) -> None:
    times, seen = watched.last
    assert seen.seeding_s + times.train_wait_s == pytest.approx(seen.rolled_s, abs=0.5)


def test_instances_generate_from_weights_to_last_response(
    watched: Watched,
) -> None:
    times, seen = watched.last
    assert times.remote_s == pytest.approx(seen.rolled_s - seen.start_s, abs=0.05)


def test_unchanged_step_has_its_final_instance_count_on_average(watched: Watched) -> None:
    times, _ = watched.last
    assert (times.mean_prem, times.next_prem) == (pytest.approx(HOSTS), HOSTS)


def test_reserved_engines_are_counted_instead_of_the_host(watched: Watched) -> None:
    times, _ = watched.last
    assert (times.reserved_engines, times.instance_engines) == (ENGINES, 1.0)


def test_lengths_are_those_of_the_responses(watched: Watched) -> None:
    _, seen = watched.last
    assert (seen.requests, seen.groups, seen.limit) == (32, 8, 2 * LENGTH)
    assert {length for group in seen.lengths for length in group} == {LENGTH}
