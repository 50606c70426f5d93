"""The critical path of a step from the manager's instants and the trainer's times."""

import pytest

from gleaner.actors.protocol.critical_path import CriticalPath
from gleaner.actors.protocol.training import StepResult
from gleaner.actors.training.step_clock import StepSeconds
from gleaner.actors.training.step_path import STAGES, stages_of

RESULT = StepResult(
    step=3, root=b"", reward=1.0, samples=8, tokens=80, loss=0.0, grad_norm=1.0, seeding_s=0.0, waiting_s=0.0,
    training_s=4.0, weights_s=0.0, update_s=0.5, last_train_s=1.0,
).with_weights(b"root", seal_s=0.25, publish_s=0.125, record_s=0.0625)  # fmt: skip
PATH = CriticalPath(
    request="step-3/0/1", instance="spot-1", sends=1, weights_s=0.5, place_s=1.0, prefill_s=0.25,
    decode_s=2.0, verdict_s=0.125, hand_out_s=0.5, train_s=2.0,
)  # fmt: skip


def test_stages_sum_to_the_step_in_order() -> None:
    spent = StepSeconds(training_s=4.0, waiting_s=4.0, evaluation_s=1.0, recovery_s=0.5)
    found = stages_of(PATH, RESULT, spent)
    assert list(found) == list(STAGES)
    assert sum(found.values()) == pytest.approx(spent.step_s)
    assert found["control"] == pytest.approx(9.5 - 1.0 - 6.375)
    assert found["messages"] == pytest.approx(2.0 - 1.9375)


def test_stages_are_not_negative_when_clocks_disagree() -> None:
    found = stages_of(PATH, RESULT, StepSeconds(training_s=1.0))
    assert all(seconds >= 0 for seconds in found.values())


def test_publishing_time_is_its_three_parts() -> None:
    assert RESULT.weights_s == pytest.approx(0.4375)
