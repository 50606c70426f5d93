"""RewardBatches: what a batch is foreseen from."""

import numpy as np
import pytest

from gleaner.actors.reward.assignment.batches import RewardBatches, kind_of
from gleaner.actors.reward.journal import BatchAnnounced
from gleaner.actors.reward.planning.forecast import BatchHistory
from gleaner.supervisor.message import decode_body


def lasted(seconds: float) -> BatchHistory:
    """A batch of one item that arrived so late and took no time."""
    return BatchHistory(np.array([seconds]), np.array([[0.0]]))


@pytest.mark.parametrize(
    ("batch", "announced", "kind"),
    [
        ("step-12", "", "step"),
        ("step-12", "short", "step short"),
        ("eval-step-3", "", "eval-step"),
        ("once", "", "once"),
    ],
)
def test_kind_of_a_batch_is_its_name_and_that_of_its_round(batch: str, announced: str, kind: str) -> None:
    assert kind_of(batch, announced) == kind


def test_batch_is_foreseen_from_the_last_one_of_its_kind_of_round() -> None:
    batches = RewardBatches()
    batches.learn(kind_of("step-1"), lasted(100.0))
    batches.learn(kind_of("step-2", "short"), lasted(10.0))
    batches.hint("step-3", 1, 0.0)
    batches.hint("step-4", 1, 0.0, "short")
    assert batches.complete_s == {"step-3": 100.0, "step-4": 10.0}


def test_batch_whose_first_item_came_before_its_announcement_gets_its_kind() -> None:
    batches = RewardBatches()
    batches.learn("step", lasted(100.0))
    batches.learn("step short", lasted(10.0))
    batches.arrived("step-3", 5.0)
    assert batches.complete_s == {"step-3": 105.0}
    assert batches.hint("step-3", 8, 6.0, "short")
    assert batches.complete_s == {"step-3": 15.0}
    assert not batches.hint("step-3", 8, 7.0, "short")
    batches.hint("step-3", 8, 7.0, "other")
    assert not batches.complete_s, "there is no history of that kind"


def test_announcement_of_an_older_journal_has_no_kind() -> None:
    old = bytes.fromhex(
        "83a474797065ae4261746368416e6e6f756e636564a56261746368a56261746368a56974656d73cea6289ef8"
    )
    assert decode_body("BatchAnnounced", old) == BatchAnnounced(batch="batch", items=2787679992, kind="")
