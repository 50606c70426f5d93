"""RewardBatches: what a batch is foreseen from."""

import numpy as np
import pytest

from gleaner.actors.reward.assignment.batches import LEAST_EXPIRY_S, RewardBatches, kind_of
from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.batch_limit import MOST_BATCHES
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.journal import BatchAnnounced
from gleaner.actors.reward.planning.forecast import BatchHistory, pooled
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


@pytest.mark.parametrize("announced", [True, False])
def test_job_with_many_batches_loses_its_own_oldest_ones(announced: bool) -> None:
    batches = RewardBatches()
    batches.hint("few/step-1", 1, 0.0)
    batches.arrived("1f2e-7", 0.0, "few")
    for number in range(2 * MOST_BATCHES):
        if announced:
            batches.hint(f"many/step-{number}", 1, 1.0)
        else:
            batches.arrived(f"{number:x}-1", 1.0, "many")
    kept = [batch.name for batch in batches.active()]
    assert kept[:2] == ["few/step-1", "1f2e-7"]
    assert len(kept) == MOST_BATCHES
    assert kept[-1] == (f"many/step-{2 * MOST_BATCHES - 1}" if announced else f"{2 * MOST_BATCHES - 1:x}-1")


async def test_items_of_a_job_with_many_batches_leave_the_batch_of_another_one() -> None:
    dispatch = ItemDispatch(["score"], 1000, 1)
    for number, job in enumerate(["few", *["many"] * 2 * MOST_BATCHES]):
        dispatch.submit(RewardItem(f"r{number}", f"{number:x}-1", float(number), "score", b"", job))
    assert dispatch.batches.get("0-1") is not None
    assert len(dispatch.batches) == MOST_BATCHES


def test_oldest_batch_of_a_job_alone_is_forgotten() -> None:
    batches = RewardBatches()
    for number in range(MOST_BATCHES + 1):
        batches.arrived(f"step-{number}", 0.0)
    assert [batch.name for batch in batches.active()] == [f"step-{n}" for n in range(1, MOST_BATCHES + 1)]


@pytest.mark.parametrize(
    ("setting_s", "last_s", "expires_s"),
    [
        (0.0, 300.0, 600.0),
        (0.0, 5.0, LEAST_EXPIRY_S),
        (40.0, 300.0, 40.0),
        (0.0, None, None),
        (40.0, None, 40.0),
    ],
)
def test_announcement_expires_without_an_item(
    setting_s: float, last_s: float | None, expires_s: float | None
) -> None:
    batches = RewardBatches()
    if last_s is not None:
        batches.learn("step", lasted(last_s))
    batches.hint("step-2", 8, 1000.0)
    batches.hint("step-3", 8, 1000.0)
    batches.arrived("step-3", 1010.0)
    late_s = 1000.0 + (expires_s if expires_s is not None else 1e6)
    assert batches.lapse(late_s - 0.1, setting_s) == []
    assert [one.name for one in batches.lapse(late_s, setting_s)] == ([] if expires_s is None else ["step-2"])
    assert batches.lapse(late_s + 1.0, setting_s) == [], "once"


def test_announcement_that_has_expired_counts_again_with_an_item_or_when_it_is_repeated() -> None:
    batches = RewardBatches()
    batches.learn("step", lasted(300.0))
    for name in ("step-2", "step-3"):
        batches.hint(name, 8, 0.0)
    assert len(batches.lapse(600.0, 0.0)) == 2
    batches.arrived("step-2", 700.0)
    assert batches.hint("step-3", 8, 700.0)
    assert [(one.lapsed, one.expected) for one in batches.active()] == [(False, 8)] * 2
    assert batches.complete_s["step-3"] == 1000.0
    assert batches.lapse(1200.0, 0.0) == []


def test_batch_is_foreseen_from_several_last_ones_where_that_is_set() -> None:
    batches = RewardBatches(history_batches=2)
    for seconds in (300.0, 100.0, 200.0):
        batches.learn("step", lasted(seconds))
    known = batches.history("step")
    assert known is not None
    assert list(known.arrivals_s) == [100.0, 200.0]
    batches.hint("step-4", 1, 0.0)
    assert batches.complete_s == {"step-4": 200.0}
    again = RewardBatches(history_batches=2)  # from a snapshot of the journal
    for kind, one in batches.histories():
        again.learn(kind, one)
    batches.learn("step", lasted(50.0))
    again.learn("step", lasted(50.0))
    found = again.history("step")
    assert found is not None
    assert list(found.arrivals_s) == [50.0, 200.0]


def test_histories_of_a_kind_are_pooled_item_by_item() -> None:
    first = BatchHistory(np.array([0.0, 30.0]), np.array([[1.0, 0.0], [2.0, 3.0]]))
    second = BatchHistory(np.array([10.0]), np.array([[4.0, 5.0]]))
    found = pooled([first, second])
    assert list(found.arrivals_s) == [0.0, 10.0, 30.0]
    assert found.times_s.tolist() == [[1.0, 0.0], [4.0, 5.0], [2.0, 3.0]]


def test_history_of_one_batch_alone_is_the_default() -> None:
    batches = RewardBatches()
    for seconds in (300.0, 100.0):
        batches.learn("step", lasted(seconds))
    assert [(kind, list(one.arrivals_s)) for kind, one in batches.histories()] == [("step", [100.0])]
