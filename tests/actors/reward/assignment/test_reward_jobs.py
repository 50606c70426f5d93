"""RewardJobs: shares, limits and accounts of jobs that share a service, and what a sick one costs others."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.reward.assignment import jobs
from gleaner.actors.reward.assignment.jobs import JobLimits, JobSick, RewardJobs, TooMany
from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.scaling import WorkerScaling
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.verdicts import LOST, OK
from gleaner.configs.schema import Planner

TAKES_S = 10.0
"""So long that a worker has one item at a time."""


class Workers:
    """A host that keeps the items that it has."""

    def __init__(self) -> None:
        self.has: dict[str, RewardItem] = {}

    def give(self, stage: str, items: Sequence[RewardItem]) -> None:
        self.has.update((one.id, one) for one in items)

    def cancel(self, items: Sequence[str], attempts: Mapping[str, int] | None = None) -> None:
        for name in items:
            del self.has[name]  # it has them

    def resize(self, stage: str, workers: int) -> None: ...

    def running(self) -> Counter[str]:
        return Counter(item.job for item in self.has.values())


def service(workers: int, limits: JobLimits, attempts: int = 1) -> tuple[ItemDispatch, Workers]:
    dispatch, host = ItemDispatch(["score"], 1000, attempts, limits), Workers()
    dispatch.hosts.took("score", TAKES_S)
    dispatch.join("h", {"score": workers}, host)
    return dispatch, host


def submit(dispatch: ItemDispatch, job: str, count: int, first: int = 0) -> "list[asyncio.Future[Verdict]]":
    return [
        dispatch.submit(RewardItem(f"{job}/{number}", f"{job}-1", float(number), "score", b"", job))
        for number in range(first, first + count)
    ]


def score_of(name: str) -> float:
    """The score of an item; no two items have the same."""
    job, number = name.split("/")
    return ord(job[0]) * 1000.0 + int(number)


def end(dispatch: ItemDispatch, host: Workers, name: str, status: str = OK) -> None:
    item = host.has.pop(name)
    verdict = Verdict(score_of(name) if status == OK else None, status)
    dispatch.result("h", name, "score", verdict, TAKES_S, attempt=item.attempts)


async def test_busy_workers_are_shared_by_weight_as_they_get_free() -> None:
    dispatch, host = service(8, JobLimits(weights={"big": 3.0}))
    submit(dispatch, "small", 40)
    assert host.running() == {"small": 8}, "nothing is kept for a job without items"
    submit(dispatch, "big", 40)
    for _ in range(6):
        end(dispatch, host, next(name for name in host.has if name.startswith("small")))
    assert host.running() == {"big": 6, "small": 2}
    for name in list(host.has):
        end(dispatch, host, name)
        assert host.running() == {"big": 6, "small": 2}


async def test_share_of_a_job_without_items_goes_to_the_others() -> None:
    dispatch, host = service(4, JobLimits())
    submit(dispatch, "a", 10)
    submit(dispatch, "b", 1)
    end(dispatch, host, "a/0")
    assert host.running() == {"a": 3, "b": 1}
    end(dispatch, host, "b/0")
    assert host.running() == {"a": 4}


async def test_surplus_goes_to_the_batch_that_is_complete_first() -> None:
    """Above the shares, the jobs' items leave in the order of EBF."""
    dispatch, host = service(4, JobLimits(weights={"a": 1e-6, "b": 1e-6, "c": 1.0}))
    dispatch.bar("h", "full", barred=True)
    submit(dispatch, "a", 2)
    submit(dispatch, "b", 2)
    submit(dispatch, "c", 1)
    dispatch.batches.complete_s = {"a-1": 20.0, "b-1": 10.0, "c-1": 30.0}
    dispatch.bar("h", "full", barred=False)
    assert host.running() == {"c": 1, "a": 1, "b": 2}


async def test_limits_of_a_job_refuse_or_hold_its_items_alone() -> None:
    dispatch, host = service(4, JobLimits(max_queued=3, max_workers=2))
    submit(dispatch, "a", 5)
    assert host.running() == {"a": 2}, "two workers are idle"
    with pytest.raises(TooMany, match=r"3 items of job a wait for a reward worker, at most 3 may"):
        submit(dispatch, "a", 1, first=5)
    submit(dispatch, "b", 2)
    assert host.running() == {"a": 2, "b": 2}
    end(dispatch, host, "b/0")
    assert host.running() == {"a": 2, "b": 1}
    assert {one.name: (one.queued, one.running, one.refused) for one in dispatch.jobs} == {
        "a": (3, 2, 1),
        "b": (0, 1, 0),
    }


async def test_job_that_ends_workers_is_stopped_and_the_other_goes_on() -> None:
    dispatch, host = service(2, JobLimits(losses=3, losses_within_s=60.0, sick_s=0.2))
    doomed = submit(dispatch, "bad", 10)
    fine = submit(dispatch, "good", 3)
    for _ in range(3):
        end(dispatch, host, next(name for name in host.has if name.startswith("bad")), LOST)
    await asyncio.sleep(0)
    assert [one.done() for one in doomed] == [True] * 10
    assert all(one.result().status == LOST for one in doomed)
    assert "job bad is stopped for a while, its items end workers" in doomed[-1].result().detail
    assert host.running() == {"good": 2}, "the workers are free for the other job"
    with pytest.raises(JobSick, match=r"3 items of job bad were lost .* within 60 s: none is taken for 0 s"):
        submit(dispatch, "bad", 1, first=10)
    while host.has:
        end(dispatch, host, next(iter(host.has)))
    await asyncio.sleep(0)
    assert [one.result().score for one in fine] == [score_of(f"good/{number}") for number in range(3)]
    await asyncio.sleep(0.25)
    submit(dispatch, "bad", 1, first=10)
    assert host.running() == {"bad": 1}
    counted = {one.name: (one.lost, one.scored, one.worker_s) for one in dispatch.jobs}
    assert counted == {"bad": (3, 0, {}), "good": (0, 3, {"score": 3 * TAKES_S})}


async def test_lost_hosts_stop_a_sick_job_once() -> None:
    """The loss of one item ends those behind it, which the same host had."""
    dispatch, _ = service(4, JobLimits(losses=1, sick_s=60.0))
    verdicts = submit(dispatch, "bad", 4)
    for _ in range(3):
        dispatch.leave("h")
        dispatch.join("h", {"score": 4}, Workers())
    await asyncio.sleep(0)
    assert [one.result().status for one in verdicts] == [LOST] * 4
    assert dispatch.counts["sick_jobs"] == 1
    assert len(dispatch.items) == 0


async def test_old_losses_do_not_count() -> None:
    known = RewardJobs(JobLimits(losses=3, losses_within_s=10.0, sick_s=5.0))
    assert [known.lost("a", at_s) for at_s in (0.0, 6.0, 12.0, 15.0, 16.0)] == [
        False,
        False,
        False,
        True,
        False,
    ]
    with pytest.raises(JobSick):
        known.admit("a", 19.9)
    known.admit("a", 20.0)


def test_idle_jobs_are_forgotten_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MOST_JOBS", 3)
    known = RewardJobs()
    for name in ("a", "b", "c"):
        known.get(name).queued = int(name == "a")
    known.get("d")
    assert [one.name for one in known] == ["a", "c", "d"]


def test_job_is_known_though_all_others_have_open_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the only idle one at the limit, and has its first item in a moment."""
    monkeypatch.setattr(jobs, "MOST_JOBS", 2)
    known = RewardJobs()
    for name in ("a", "b", "c"):
        known.get(name).queued = 1
    assert known.next_of("score", ["a", "b", "c"], 3, 1) == ["a"]


async def test_item_that_is_tried_elsewhere_is_not_lost() -> None:
    dispatch, host = service(1, JobLimits(losses=1), attempts=2)
    dispatch.join("other", {"score": 1}, Workers())
    (verdict,) = submit(dispatch, "a", 1)
    end(dispatch, host, "a/0", LOST)
    assert not verdict.done()
    assert [one.lost for one in dispatch.jobs] == [0]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6)), max_size=12),
    st.dictionaries(st.sampled_from("abc"), st.floats(0.1, 10.0)),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_every_item_is_scored_once_and_no_worker_idles(
    arrivals: list[tuple[str, int]], weights: dict[str, float], max_workers: int, order: object
) -> None:
    """Whatever the shares are: with several jobs each gets the verdicts that it would get alone."""

    async def run() -> None:
        dispatch, host = service(3, JobLimits(weights=weights, max_workers=max_workers))
        sent: Counter[str] = Counter()
        verdicts: dict[str, asyncio.Future[Verdict]] = {}
        for job, count in arrivals:
            names = [f"{job}/{number}" for number in range(sent[job], sent[job] + count)]
            verdicts |= zip(names, submit(dispatch, job, count, first=sent[job]), strict=True)
            sent[job] += count
            if host.has:
                end(dispatch, host, order.choice(sorted(host.has)))  # type: ignore[attr-defined]
            _work_is_conserved(dispatch, host, max_workers)
        while host.has:
            end(dispatch, host, order.choice(sorted(host.has)))  # type: ignore[attr-defined]
            _work_is_conserved(dispatch, host, max_workers)
        await asyncio.sleep(0)
        found = {name: one.result().score for name, one in verdicts.items()}
        assert found == {name: score_of(name) for name in verdicts}
        assert {one.name: one.scored for one in dispatch.jobs} == dict(sent)
        assert not dispatch.items.waiting

    asyncio.run(run())


def _work_is_conserved(dispatch: ItemDispatch, host: Workers, max_workers: int) -> None:
    running = host.running()
    assert max(running.values(), default=0) <= (max_workers or 3)
    if sum(running.values()) < 3:
        may_run = [one for one in dispatch.jobs if one.queued and running[one.name] < (max_workers or 3)]
        assert not may_run
    assert {one.name: one.running for one in dispatch.jobs if one.running} == dict(running)


@given(
    st.integers(0, 3),
    st.integers(1, 8),
    st.dictionaries(st.sampled_from("abc"), st.floats(0.1, 10.0)),
    st.randoms(use_true_random=False),
)
def test_job_has_its_guaranteed_workers_when_others_flood(
    guaranteed: int, demand: int, weights: dict[str, float], order: object
) -> None:
    """From the first item that each worker ends; others have all workers that it has no items for."""

    async def run() -> None:
        dispatch, host = service(3, JobLimits(weights=weights, guaranteed={"a": guaranteed, "b": 0}))
        submit(dispatch, "b", 20)
        submit(dispatch, "c", 20)
        assert host.running().total() == 3, "no worker is kept for a job without items"
        submit(dispatch, "a", demand)
        for name in list(host.has):
            end(dispatch, host, name)
        while host.has:
            a = dispatch.jobs.get("a")
            assert host.running()["a"] == a.running >= min(guaranteed, a.queued + a.running)
            _work_is_conserved(dispatch, host, 0)
            end(dispatch, host, order.choice(sorted(host.has)))  # type: ignore[attr-defined]
        assert {one.name: one.scored for one in dispatch.jobs} == {"a": demand, "b": 20, "c": 20}

    asyncio.run(run())


def test_plan_has_the_workers_that_are_guaranteed_for_items() -> None:
    known = RewardJobs(JobLimits(guaranteed={"a": 4, "b": 2, "idle": 9}))
    for name in ("a", "b", "c", "idle"):
        known.get(name)
    known.get("a").placed("run", 1)
    assert known.guaranteed_workers("run", {"a": 2, "b": 5, "c": 7}) == 3 + 2
    assert known.guaranteed_workers("compile", {}) == 0


async def test_hosts_get_the_guaranteed_workers_where_fewer_are_planned() -> None:
    dispatch, _ = service(4, JobLimits(guaranteed={"a": 3}))
    submit(dispatch, "a", 5)
    resized: list[tuple[str, str, int]] = []
    scaling = WorkerScaling(
        None,  # type: ignore[arg-type]
        dispatch,
        Planner(kind="distrs"),
        [],
        least={},
        resize=lambda *one: resized.append(one),
    )
    scaling._apply("score", 1)
    assert resized == [("h", "score", 3)]


def test_share_of_a_job_is_of_each_stage() -> None:
    """What it has in one stage is not held against it in another."""
    known = RewardJobs(JobLimits(max_workers=2))
    for name, compiles, runs in (("a", 0, 2), ("b", 1, 0)):
        job = known.get(name)
        job.queued = 1
        job.placed("compile", compiles)
        job.placed("run", runs)
    assert known.next_of("compile", ["a", "b"], 3, 1) == ["a"]
    assert known.next_of("run", ["a", "b"], 4, 1) == ["b"], "a has its quota there"
    assert {job.name: job.running for job in known} == {"a": 2, "b": 1}


def test_no_more_workers_are_planned_than_the_quotas_let_work() -> None:
    known = RewardJobs(JobLimits(max_workers=3))
    assert known.most_workers(100) == 100, "nothing is known of the jobs that come"
    for name in ("a", "b", "idle"):
        known.get(name).queued = int(name != "idle")
    assert known.most_workers(100) == 6
    assert known.most_workers(4) == 4
    assert RewardJobs().most_workers(100) == 100
