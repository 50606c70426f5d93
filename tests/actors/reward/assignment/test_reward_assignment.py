"""Assignment of reward items: order, credit, places that are kept, and counts that stay true."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.reward.assignment.batches import RewardBatches
from gleaner.actors.reward.assignment.hosts import FIRST_AHEAD, MOST_AHEAD, ScoringHosts, items_ahead
from gleaner.actors.reward.assignment.jobs import TooMany
from gleaner.actors.reward.assignment.open_items import OpenItems, RewardItem
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.verdicts import LOST, OK

STAGES = ("score", "other")


def item(name: str, batch: str = "step-1", arrival_s: float = 0.0, stage: str = "score") -> RewardItem:
    return RewardItem(name, batch, arrival_s, stage, b"")


def pick(
    items: OpenItems, complete_s: dict[str, float], stage: str = "score", host: str = "h"
) -> RewardItem | None:
    found = items.next(stage, [""], complete_s)
    if found is not None:
        items.place(found, host, 0.0)
    return found


def picked(items: OpenItems, count: int, complete_s: dict[str, float]) -> list[str]:
    found = [pick(items, complete_s) for _ in range(count)]
    return [one.id for one in found if one is not None]


def test_items_of_the_earliest_batch_leave_first() -> None:
    items = OpenItems(10)
    for name, batch in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b")):
        items.add(item(name, batch, float(name[1])))
    assert picked(items, 4, {"a": 20.0, "b": 10.0}) == ["b1", "b2", "a1", "a2"]


def test_lost_item_returns_to_its_place() -> None:
    items = OpenItems(10)
    for name, arrival_s in (("one", 1.0), ("two", 2.0), ("three", 3.0)):
        items.add(item(name, arrival_s=arrival_s))
    first = pick(items, {})
    assert first is not None
    items.back(first)
    assert (picked(items, 3, {}), items.waiting) == (["one", "two", "three"], 0)


def test_dropped_item_is_not_picked() -> None:
    items = OpenItems(10)
    for name in ("one", "two"):
        items.add(item(name))
    assert [one.id for one in items.drop(["one", "gone"])] == ["one"]
    assert (items.waiting, picked(items, 2, {})) == (1, ["two"])


def test_items_beyond_the_limit_are_refused() -> None:
    items = OpenItems(1)
    items.add(item("one"))
    with pytest.raises(TooMany, match="at most 1"):
        items.add(item("two"))
    assert picked(items, 1, {}) == ["one"]
    items.add(item("two"))  # what runs does not wait


@given(st.integers(0, 2**32))
def test_counts_stay_true_under_any_order_of_events(seed: int) -> None:
    """Waiting + running = open; an item is in one place; nothing is picked twice."""
    rng, items, number = random.Random(seed), OpenItems(50), 0
    running: list[RewardItem] = []
    for _ in range(200):
        match rng.randrange(6):
            case 0 if items.waiting < 50:
                items.add(item(f"i{number}", f"b{number % 3}", float(number), rng.choice(STAGES)))
                number += 1
            case 1:
                stage = rng.choice(STAGES)
                if (one := pick(items, {"b1": 1.0}, stage, f"h{rng.randrange(2)}")) is not None:
                    assert one not in running
                    running.append(one)
            case 2 if running:
                items.back(running.pop(rng.randrange(len(running))))
            case 3 if running:
                items.end(running.pop(rng.randrange(len(running))))
            case 4 if len(items):
                victim = rng.choice([one.id for one in items])
                items.drop([victim])
                running = [one for one in running if one.id != victim]
            case 5 if len(items):
                moved = rng.choice(list(items))
                items.move(moved, rng.choice(STAGES))
                running = [one for one in running if one is not moved]
        on_hosts = [*items.running_on("h0"), *items.running_on("h1")]
        assert sorted(one.id for one in on_hosts) == sorted(one.id for one in running)
        assert items.waiting + len(running) == len(items)
        assert sorted(one.id for one in items.running()) == sorted(one.id for one in running)
        waits = Counter((one.batch, one.stage) for one in items if not one.host)
        for batch in ("b0", "b1", "b2"):
            expected = {stage: waits[batch, stage] for stage in STAGES if waits[batch, stage]}
            assert items.waiting_of(batch) == expected


def test_dropped_items_do_not_pile_up_in_queues() -> None:
    """A service without workers whose batches are dropped again and again."""
    items = OpenItems(100)
    for number in range(5000):
        items.add(item(f"i{number}"))
        items.drop([f"i{number}"])
    assert sum(len(queue) for queue in items._queues.values()) < 1200


def test_least_loaded_host_gets_the_next_item() -> None:
    hosts = ScoringHosts()
    hosts.join("small", {"score": 1}).has["score"] = 1
    hosts.join("large", {"score": 4}).has["score"] = 2
    assert [host.name for host in [hosts.choose("score")] if host] == ["large"]


def test_host_gets_no_more_than_its_credit() -> None:
    hosts = ScoringHosts()
    host = hosts.join("h", {"score": 2})
    hosts.took("score", 10.0)
    host.has["score"] = 2
    assert hosts.choose("score") is None
    host.has["score"] = 1
    assert hosts.choose("score") is host
    host.barred.add("leaving")
    assert (hosts.choose("score"), hosts.workers("score")) == (None, 0)


def test_short_items_are_sent_ahead_and_long_ones_are_not() -> None:
    assert [items_ahead(item_s) for item_s in (None, 1e-5, 0.02, 0.2, 50.0)] == [
        FIRST_AHEAD,
        MOST_AHEAD,
        5,
        1,
        1,
    ]


def scored(batches: RewardBatches, batch: str, arrival_s: float, took_s: float) -> None:
    batches.arrived(batch, arrival_s)
    one = item(f"{batch}/{arrival_s}", batch, arrival_s)
    one.spent_s["score"] = took_s
    batches.scored(one)


def test_batch_is_foreseen_from_the_one_before_it() -> None:
    batches = RewardBatches()
    batches.hint("step-1", 2, 100.0)
    scored(batches, "step-1", 110.0, 5.0)
    scored(batches, "step-1", 130.0, 20.0)
    assert "step-1" not in batches.complete_s  # nothing was known before it
    batches.ended("step-1")
    batches.hint("step-2", 2, 200.0)
    batches.hint("eval-2", 2, 200.0)  # of another kind
    assert batches.complete_s == {"step-2": 200.0 + 30.0 + 20.0}


def test_estimate_is_raised_by_late_arrivals_and_never_lowered() -> None:
    batches = RewardBatches()
    scored(batches, "step-1", 0.0, 4.0)
    batches.ended("step-1")
    batches.arrived("step-2", 100.0)
    assert batches.complete_s["step-2"] == 104.0
    batches.arrived("step-2", 102.0)
    assert batches.complete_s["step-2"] == 104.0
    batches.arrived("step-2", 110.0)
    assert batches.complete_s["step-2"] == 114.0


class _Link:
    """The way to a host that keeps what it gets."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def give(self, stage: str, items: Sequence[RewardItem]) -> None:
        self.given += [one.id for one in items]

    def cancel(self, items: Sequence[str], attempts: Mapping[str, int] | None = None) -> None:
        pass

    def resize(self, stage: str, workers: int) -> None:
        pass


class Cancelled(_Link):
    """Keeps the attempts that end on its host."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[Mapping[str, int] | None] = []

    def cancel(self, items: Sequence[str], attempts: Mapping[str, int] | None = None) -> None:
        self.ended.append(attempts)


async def test_failure_of_ours_gives_no_duration_of_items() -> None:
    """A worker that hung reports 0 s: its host would get up to 64 items for each worker."""
    dispatch = ItemDispatch(["score"], 1000, 1)
    link = _Link()
    dispatch.join("h", {"score": 1}, link)
    for number in range(100):
        dispatch.submit(item(f"r{number}"))
    assert len(link.given) == FIRST_AHEAD
    dispatch.result("h", "r0", "score", Verdict(None, LOST, "a worker hung"), 0.0, attempt=0)
    assert len(link.given) == FIRST_AHEAD + 1
    for name in link.given[1:]:
        dispatch.result("h", name, "score", Verdict(1.0, OK, ""), 1.0, attempt=0)
    assert len(link.given) == FIRST_AHEAD + 2, "one item at a time"


async def test_failure_of_ours_is_tried_on_another_host() -> None:
    """Also where the one that failed has less to do; and a host that was lost before counts apart."""
    dispatch = ItemDispatch(["score"], 1000, 2)
    links = {name: _Link() for name in ("gone", "first", "second")}
    dispatch.join("gone", {"score": 1}, links["gone"])
    done = dispatch.submit(item("r0"))
    dispatch.leave("gone")
    dispatch.join("first", {"score": 9}, links["first"])
    dispatch.join("second", {"score": 1}, links["second"])
    dispatch.result("first", "r0", "score", Verdict(None, LOST, "a worker died"), 0.0, attempt=0)
    assert (links["first"].given, links["second"].given) == (["r0"], ["r0"])
    dispatch.result("second", "r0", "score", Verdict(1.0, OK, ""), 1.0, attempt=1)
    assert (await done).score == 1.0


async def test_result_before_its_request_is_no_late_one() -> None:
    dispatch = ItemDispatch(["score"], 1000, 2)
    dispatch.join("h", {"score": 1}, _Link(), {"r0": 0})
    for _ in range(2):
        dispatch.result("h", "r0", "score", Verdict(1.0, OK, ""), 1.0, attempt=0)
    assert dispatch.counts["late_results"] == 1
    assert (await dispatch.submit(item("r0"))).score == 1.0


async def test_result_before_its_request_gives_the_duration_of_items() -> None:
    """A service that restarted has no other one yet, and would give a host eight items for each worker."""
    dispatch = ItemDispatch(["score"], 1000, 2)
    link = _Link()
    dispatch.join("h", {"score": 2}, link, {"r0": 0, "r1": 0})
    dispatch.result("h", "r0", "score", Verdict(1.0, OK, ""), 1.0, attempt=0)
    dispatch.result("h", "r1", "no-stage", Verdict(1.0, OK, ""), 1e-6, attempt=0)
    for number in range(2, 9):
        dispatch.submit(item(f"r{number}"))
    assert link.given == ["r2", "r3"]


async def test_failure_of_an_earlier_attempt_is_late() -> None:
    """A host repeats a result whose receipt it did not see."""
    dispatch = ItemDispatch(["score"], 1000, 3)
    link = _Link()
    dispatch.join("h", {"score": 1}, link)
    dispatch.join("other", {}, _Link())
    done = dispatch.submit(item("r0"))
    for _ in range(3):
        dispatch.result("h", "r0", "score", Verdict(None, LOST, "a worker died"), 0.0, attempt=0)
    assert (link.given.count("r0"), dispatch.counts["late_results"]) == (2, 2)
    assert not done.done()
    dispatch.result("h", "r0", "score", Verdict(1.0, OK, ""), 1.0, attempt=1)
    assert (await done).score == 1.0


async def test_host_that_offers_an_earlier_attempt_gets_the_item_again() -> None:
    """Its next attempt did not reach the host."""
    dispatch = ItemDispatch(["score"], 1000, 3)
    before, after = _Link(), _Link()
    dispatch.join("h", {"score": 1}, before)
    dispatch.join("other", {}, _Link())
    done = dispatch.submit(item("r0"))
    dispatch.result("h", "r0", "score", Verdict(None, LOST, "a worker died"), 0.0, attempt=0)
    assert before.given == ["r0", "r0"]
    dispatch.join("h", {"score": 1}, after, {"r0": 0})
    assert after.given == ["r0"]
    dispatch.join("h", {"score": 1}, after, {"r0": 1})
    assert after.given == ["r0"], "it has this attempt"
    dispatch.result("h", "r0", "score", Verdict(1.0, OK, ""), 1.0, attempt=1)
    assert (await done).score == 1.0


async def test_host_that_comes_back_ends_what_runs_elsewhere_by_now() -> None:
    """The service is new: another host got the item before the one that still has it announced it."""
    dispatch, late, busy = ItemDispatch(["score"], 1000, 3), Cancelled(), Cancelled()
    dispatch.join("busy", {"score": 1}, busy)
    done = dispatch.submit(item("r0"))
    dispatch.join("late", {"score": 1}, late, {"r0": 0})
    assert (late.ended, busy.ended) == ([{"r0": 0}], [])
    dispatch.join("busy", {"score": 1}, busy, {"r0": 0})
    assert busy.ended == [], "it is the one that has it"
    dispatch.result("busy", "r0", "score", Verdict(1.0, OK, ""), 1.0, attempt=0)
    assert (await done).score == 1.0


async def test_attempts_are_counted_on_over_a_restart_of_the_service() -> None:
    dispatch = ItemDispatch(["score"], 1000, 2)
    link = _Link()
    dispatch.join("h", {"score": 1}, link, {"r0": 1})
    dispatch.join("other", {"score": 1}, _Link())
    done = dispatch.submit(item("r0"))
    assert not link.given
    dispatch.result("h", "r0", "score", Verdict(None, LOST, "a worker died"), 0.0, attempt=1)
    assert (await done).status == LOST, "that was the second one"


async def test_hosts_get_the_items_of_several_results_together() -> None:
    dispatch, link = ItemDispatch(["score"], 100, 1), Given()
    dispatch.join("far", {"score": 1}, link)
    done = [dispatch.submit(item(f"i{number}")) for number in range(FIRST_AHEAD + 3)]
    link.parts.clear()
    with dispatch.together():
        for number in range(3):
            dispatch.result("far", f"i{number}", "score", Verdict(1.0, OK), 1e-4, attempt=0)
        assert link.parts == []
    assert link.parts == [[f"i{FIRST_AHEAD}", f"i{FIRST_AHEAD + 1}", f"i{FIRST_AHEAD + 2}"]]
    assert [one.result().score for one in done[:3]] == [1.0, 1.0, 1.0]


class Given:
    """A `HostLink` that keeps what it was given."""

    def __init__(self) -> None:
        self.parts: list[list[str]] = []

    def give(self, stage: str, items: Sequence[RewardItem]) -> None:
        self.parts.append([one.id for one in items])

    def cancel(self, items: Sequence[str], attempts: Mapping[str, int] | None = None) -> None:
        raise AssertionError(f"{items} of {attempts} were cancelled")

    def resize(self, stage: str, workers: int) -> None:
        raise AssertionError(f"{stage} has {workers} workers")
