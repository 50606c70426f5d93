"""GivenAttempts: a result counts only from a host that was given that attempt of the item."""

from collections.abc import Mapping, Sequence

import pytest

from gleaner.actors.reward.assignment import given_attempts
from gleaner.actors.reward.assignment.given_attempts import GivenAttempts
from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.verdicts import BLOB_LOST, LOST, OK, PASSED, VERIFIER_FAILED

FOREIGN = Verdict(0.0, OK)
TRUE = Verdict(1.0, OK)
RUN = "run"


class Link:
    """The way to a host that keeps what it gets."""

    def __init__(self) -> None:
        self.given: list[tuple[str, int]] = []
        self.cancelled: list[str] = []

    def give(self, stage: str, items: Sequence[RewardItem]) -> None:
        self.given += [(one.id, one.attempts) for one in items]

    def cancel(self, items: Sequence[str], attempts: Mapping[str, int] | None = None) -> None:
        self.cancelled += items

    def resize(self, stage: str, workers: int) -> None: ...


def item(name: str, stage: str = "score", pipeline: tuple[str, ...] = ()) -> RewardItem:
    return RewardItem(name, "step-1", 0.0, stage, b"", "", pipeline)


def two_hosts(attempts: int = 3) -> tuple[ItemDispatch, Link, Link]:
    """The one that gets the first item, and another one."""
    dispatch, mine, other = ItemDispatch(["score"], 100, attempts), Link(), Link()
    dispatch.join("mine", {"score": 1}, mine)
    dispatch.join("other", {"score": 1}, other)
    return dispatch, mine, other


@pytest.mark.parametrize(
    "verdict", [FOREIGN, Verdict(None, LOST), Verdict(None, BLOB_LOST), Verdict(None, PASSED, carried=b"x")]
)
async def test_result_of_another_host_changes_nothing(verdict: Verdict) -> None:
    dispatch, mine, other = two_hosts()
    done = dispatch.submit(item("a"))
    assert (mine.given, other.given) == ([("a", 0)], [])
    assert not dispatch.result("other", "a", "score", verdict, 1.0, attempt=0)
    assert (done.done(), mine.cancelled, dispatch.counts) == (False, [], {"foreign_results": 1})
    assert dispatch.hosts.item_s("score") is None
    assert dispatch.result("mine", "a", "score", TRUE, 1.0, attempt=0)
    assert (await done).score == 1.0


@pytest.mark.parametrize("attempt", [-1, 1, 99])
async def test_attempt_that_was_never_sent_changes_nothing(attempt: int) -> None:
    dispatch, mine, _ = two_hosts()
    done = dispatch.submit(item("a"))
    for verdict in (FOREIGN, Verdict(None, LOST)):
        assert not dispatch.result("mine", "a", "score", verdict, 1.0, attempt=attempt)
    assert (done.done(), mine.given, dispatch.counts["foreign_results"]) == (False, [("a", 0)], 2)
    assert dispatch.result("mine", "a", "score", TRUE, 1.0, attempt=0)
    assert (await done).score == 1.0


async def test_stage_is_not_passed_by_a_host_that_did_not_do_it() -> None:
    dispatch, compiler, runner = ItemDispatch(["compile", RUN], 100, 2), Link(), Link()
    dispatch.join("compiler", {"compile": 1}, compiler)
    dispatch.join("runner", {RUN: 1}, runner)
    done = dispatch.submit(item("a", "compile", ("compile", RUN)))
    assert not dispatch.result("runner", "a", RUN, FOREIGN, 1.0, attempt=0)
    assert dispatch.result("compiler", "a", "compile", Verdict(None, PASSED), 1.0, attempt=0)
    assert not dispatch.result("compiler", "a", RUN, FOREIGN, 1.0, attempt=1)
    assert dispatch.result("runner", "a", RUN, TRUE, 1.0, attempt=1)
    assert (await done).score == 1.0


async def test_late_result_of_an_earlier_attempt_counts_where_its_host_had_it() -> None:
    """The host drained, and the item waits again, or runs elsewhere, when the result arrives."""
    dispatch, mine, other = two_hosts()
    done = dispatch.submit(item("a"))
    dispatch.bar("mine", "leaving", barred=True)
    dispatch.take_back("mine")
    assert (mine.given, other.given) == ([("a", 0)], [("a", 0)])
    assert dispatch.result("mine", "a", "score", TRUE, 1.0, attempt=0)
    assert (await done).score == 1.0
    assert other.cancelled == ["a"]
    dispatch.result("other", "a", "score", FOREIGN, 1.0, attempt=0)
    assert dispatch.counts == {"late_results": 1}


async def test_both_hosts_that_announce_an_item_after_a_restart_can_settle_it() -> None:
    """The one with the higher attempt keeps it; the other one scores it before it is cancelled."""
    dispatch = ItemDispatch(["score"], 100, 2)
    dispatch.join("first", {"score": 1}, Link(), running={"a": 4})
    dispatch.join("second", {"score": 1}, Link(), running={"a": 6})
    done = dispatch.submit(item("a"))
    assert not dispatch.result("first", "a", "score", FOREIGN, 1.0, attempt=6)
    assert not dispatch.result("second", "a", "score", FOREIGN, 1.0, attempt=0)
    assert dispatch.result("first", "a", "score", TRUE, 1.0, attempt=4)
    assert (await done).score == 1.0


async def test_item_that_a_host_announces_after_it_was_given_elsewhere_is_settled_by_either() -> None:
    """The request was repeated before the host had joined the new service."""
    dispatch, mine, _ = two_hosts()
    done = dispatch.submit(item("a"))
    dispatch.join("late", {"score": 1}, Link(), running={"a": 7})
    assert dispatch.result("late", "a", "score", TRUE, 1.0, attempt=7)
    assert (await done).score == 1.0
    assert mine.cancelled == ["a"]


async def test_result_before_its_request_counts_only_where_it_was_announced() -> None:
    dispatch = ItemDispatch(["score"], 100, 2)
    dispatch.join("h", {"score": 1}, Link(), running={"a": 3})
    dispatch.join("other", {"score": 1}, Link())
    assert not dispatch.result("other", "a", "score", FOREIGN, 1.0, attempt=3)
    assert not dispatch.result("h", "b", "score", FOREIGN, 1.0, attempt=0)
    assert dispatch.result("h", "a", "score", TRUE, 1.0, attempt=3)
    assert (await dispatch.submit(item("a"))).score == 1.0
    assert not dispatch.submit(item("b")).done()


async def test_result_before_its_request_is_recorded_once_when_the_request_arrives() -> None:
    """With the time that it took: the service keeps long ones over its next restart."""
    dispatch, recorded = ItemDispatch(["score"], 100, 2), list[tuple[str, str, float, float | None]]()
    dispatch.settlement.on_verdict = lambda it, verdict: recorded.append(
        (it.id, it.batch, it.took_s, verdict.score)
    )
    dispatch.join("h", {"score": 1}, Link(), running={"a": 3})
    assert dispatch.result("h", "a", "score", TRUE, 1.5, attempt=3)
    assert recorded == []
    for _ in range(2):
        assert (await dispatch.submit(item("a"))).score == 1.0
    assert recorded == [("a", "step-1", 1.5, 1.0)]


async def test_result_of_a_cancelled_item_counts_when_its_request_is_repeated() -> None:
    """Result and cancellation pass each other."""
    dispatch, _, _ = two_hosts()
    dispatch.submit(item("a"))
    dispatch.cancel(["a"])
    assert not dispatch.result("other", "a", "score", FOREIGN, 1.0, attempt=0)
    assert dispatch.result("mine", "a", "score", TRUE, 1.0, attempt=0)
    assert (await dispatch.submit(item("a"))).score == 1.0


async def test_attempt_of_an_item_that_is_open_anew_has_the_number_of_none_before() -> None:
    """Its verifier failed on both hosts, and it was requested again. With numbers from 0 on the host that had
    attempt 1 before could settle attempt 1 of the other one."""
    dispatch, mine, other = two_hosts(attempts=2)
    failed = Verdict(None, VERIFIER_FAILED)
    for host, attempt in (("mine", 0), ("other", 1)):
        first = dispatch.submit(item("a"))
        assert dispatch.result(host, "a", "score", failed, 1.0, attempt=attempt)
    assert (await first).status == VERIFIER_FAILED
    done = dispatch.submit(item("a"))
    assert (mine.given, other.given) == ([("a", 0), ("a", 2)], [("a", 1)])
    assert dispatch.result("mine", "a", "score", failed, 1.0, attempt=2)
    assert not dispatch.result("mine", "a", "score", FOREIGN, 1.0, attempt=3)
    assert (other.given[-1], done.done()) == (("a", 3), False)
    assert dispatch.result("other", "a", "score", TRUE, 1.0, attempt=3)
    assert (await done).score == 1.0


def test_attempts_of_closed_items_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_attempts, "MOST_CLOSED", 2)
    known = GivenAttempts()
    for name in ("a", "b", "a", "c"):
        known.closed(name, {("h", len(name))})
    known.closed("never given", set())
    assert [known.has(name, "h", 1) for name in ("a", "b", "c")] == [True, False, True]


def test_announcement_replaces_the_one_before_it_and_ends_with_its_host() -> None:
    known = GivenAttempts()
    known.announced("h", {"a": 1, "b": 1})
    known.announced("h", {"b": 2})
    assert [known.has(*one) for one in (("a", "h", 1), ("b", "h", 1), ("b", "h", 2))] == [False, False, True]
    known.left("h")
    assert not known.has("b", "h", 2)
