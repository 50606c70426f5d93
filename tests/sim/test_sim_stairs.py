"""Seeding windows whose engines leave in two halves, in whole simulated jobs."""

import random
from dataclasses import replace

import pytest

from gleaner.actors.protocol.balancer import InstanceHalved
from gleaner.actors.protocol.cluster import StepTrained
from gleaner.actors.protocol.rollout import TakeGroups
from gleaner.actors.protocol.training import HalveSeeding
from gleaner.actors.training.records import Step
from gleaner.configs.load import load
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.models.engine_host import SimEngineHost
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.job_model import JobModel
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.shapes import model_shape
from gleaner.sim.outcome import Outcome
from gleaner.sim.run_setup import RunSetup

SMALL = [
    "job.steps=4",
    "task.heldout_problems=4",
    "rollout.prompts=12",
    "rollout.samples=4",
    "rollout.max_new_tokens=400",
    "training.micro_batch_groups=1",
    "training.backend=fsdp2",
    "training.processes=2",
    "engine.slots=16",
    "fleet.n_prem_max=0",
    "fleet.trace=",
    "fleet.await_instance=false",
]


def setup(settings: list[str], devices: int = 2, seed: int = 0) -> RunSetup:
    law = LengthLaw(median=60.0, sigma=0.7, correlation=0.3)
    model = JobModel(model_shape("quickstart"), law)
    made = RunSetup(load("quickstart", [*SMALL, *settings]), seed=seed, job_model=model)
    return replace(made, reserved=HostDevices("cpu_core", devices))


def ended(cluster: SimCluster) -> Outcome:
    outcome = cluster.run()
    assert (outcome.ended, outcome.findings) == ("done", []), outcome.reason
    assert audit(evidence(outcome)) == []
    return outcome


def steps_of(outcome: Outcome) -> list[Step]:
    return [one for one in outcome.history if isinstance(one, Step)]


def test_half_of_the_engines_leaves_and_the_trainer_trains_meanwhile() -> None:
    steps = steps_of(ended(SimCluster(setup(["seeding.stairs=paper"]))))
    taken = [step for step in steps if step.stair_s is not None]
    assert len(taken) >= 2, "too few stairs: this shows nothing"
    for step in taken:
        assert step.stair_s is not None
        assert 0 < step.stair_s < step.seeding_s + step.half_s
        assert 0 < step.half_s <= step.training_s


def test_load_balancer_learns_of_each_half_and_measures_whole_instances_only() -> None:
    cluster = SimCluster(setup(["seeding.stairs=paper"]))
    halves = list[bool]()

    def look(seen: ObservedMessage) -> None:
        if seen.direction == "in" and isinstance(seen.message, InstanceHalved):
            halves.append(seen.message.half)

    cluster.watch(look)
    taken = [step for step in steps_of(ended(cluster)) if step.stair_s is not None]
    assert halves.count(True) == len(taken) >= 2
    assert halves[: 2 * len(taken) - 1] == [True, False] * (len(taken) - 1) + [True]


def test_stairs_train_the_samples_of_the_job_without_them() -> None:
    plain, stairs = (
        {
            one.step: {(sample.request, sample.crc) for sample in one.samples}
            for one in evidence(outcome).trained
            if isinstance(one, StepTrained)
        }
        for outcome in (ended(SimCluster(setup([]))), ended(SimCluster(setup(["seeding.stairs=paper"]))))
    )
    assert stairs == plain


def test_engines_of_an_odd_number_stay_together(caplog: pytest.LogCaptureFixture) -> None:
    outcome = ended(SimCluster(setup(["seeding.stairs=paper"], devices=3)))
    assert [step.stair_s for step in steps_of(outcome)] == [None] * 4
    reasons = [one for one in caplog.messages if "cannot be halved" in one]
    assert len(reasons) == 1, "the reason is logged once"


@pytest.mark.parametrize("kind", ["trainer", "rank-1"])
def test_step_begins_anew_after_a_kill_on_a_stair(kind: str) -> None:
    """The process dies when half of the engines have left, or soon after."""
    hits = list[bool]()
    for seed in range(4):
        cluster = SimCluster(setup(["seeding.stairs=paper"], seed=seed))
        faults, rng, killed = FaultInjector(cluster), random.Random(seed), list[bool]()

        def look(
            seen: ObservedMessage,
            cluster: SimCluster = cluster,
            faults: FaultInjector = faults,
            rng: random.Random = rng,
            killed: list[bool] = killed,
        ) -> None:
            ask = seen.message
            if not isinstance(ask, TakeGroups) or seen.direction != "in" or len(killed) > 1:
                return
            if ask.ended is None and ask.min_groups == 1:  # asked on a stair only: no instance is there
                cluster.loop.call_later(
                    rng.uniform(0.0, 0.2), lambda: killed.append(faults.kill_process("reserved-1", kind))
                )

        cluster.watch(look)
        outcome = ended(cluster)
        assert any(step.stair_s is not None for step in steps_of(outcome)), f"seed {seed}"
        hits += killed
    assert sum(hits) >= 4, "too few faults: this shows nothing"


def test_engine_that_cannot_halve_is_asked_once_and_leaves_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimEngineHost, "halves", property(lambda _host: False))
    cluster, asked = SimCluster(setup(["seeding.stairs=paper"])), list[HalveSeeding]()

    def look(seen: ObservedMessage) -> None:
        if seen.direction != "in" and isinstance(seen.message, HalveSeeding):  # sent within a process
            asked.append(seen.message)

    cluster.watch(look)
    steps = steps_of(ended(cluster))
    assert len(steps) == 4
    assert {step.stair_s for step in steps} == {None}
    assert len(asked) == 1
