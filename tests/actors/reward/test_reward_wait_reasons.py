"""Each reason for which a reward item waits is named, and by the numbers that hold."""

from collections.abc import Mapping, Sequence

from gleaner.actors.reward.assignment.jobs import JobLimits
from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.status import state_of
from gleaner.actors.reward.wait_reasons import why_waits
from gleaner.rlctl.commands.reward_state import line_of

TAKES_S = 10.0
"""So long that a worker has one item at a time."""


class Host:
    """Takes items and does nothing."""

    def give(self, stage: str, items: Sequence[RewardItem]) -> None: ...
    def cancel(self, items: Sequence[str], attempts: Mapping[str, int] | None = None) -> None: ...
    def resize(self, stage: str, workers: int) -> None: ...


def service(workers: Mapping[str, int], limits: JobLimits | None = None) -> ItemDispatch:
    """One host with these workers of stages; none: there is no host."""
    dispatch = ItemDispatch(["compile", "run"], 100, 2, limits)
    for stage in dispatch.stages:
        dispatch.hosts.took(stage, TAKES_S)
    if workers:
        dispatch.join("h", workers, Host())
    return dispatch


def submitted(dispatch: ItemDispatch, job: str, count: int, stage: str = "run") -> list[RewardItem]:
    """Open items of a job."""
    first = len(list(dispatch))
    items = [
        RewardItem(f"{job}/{number}", f"{job}-1", float(number), stage, b"", job)
        for number in range(first, first + count)
    ]
    for item in items:
        dispatch.submit(item)
    return items


async def test_item_waits_for_a_stage_that_no_host_offers() -> None:
    dispatch = service({"run": 1})
    (item,) = submitted(dispatch, "", 1, "compile")
    assert why_waits(dispatch, item) == "no host offers workers of compile"
    assert why_waits(service({}), item) == "no host offers workers of compile"


async def test_item_waits_for_hosts_that_are_barred() -> None:
    dispatch = service({"run": 1})
    dispatch.bar("h", "leaving", barred=True)
    dispatch.bar("h", "silent", barred=True)
    (item,) = submitted(dispatch, "", 1)
    assert why_waits(dispatch, item) == "no host with workers of run gets new items: h (leaving, silent)"
    dispatch.join("busy", {"run": 1}, Host())
    (last,) = submitted(dispatch, "", 1)
    assert why_waits(dispatch, last) == (
        "all workers of run (1) have as many items as they take; no new items go to h (leaving, silent)"
    )


async def test_item_waits_for_workers_that_the_plan_does_not_use() -> None:
    dispatch = service({"run": 1})
    dispatch.resize("h", "run", 0)
    (item,) = submitted(dispatch, "", 1)
    assert why_waits(dispatch, item) == "no worker of run is in use: the plan has none now"


async def test_item_waits_for_the_quota_of_its_job_while_workers_are_free() -> None:
    dispatch = service({"run": 4}, JobLimits(max_workers=2))
    *_, last = submitted(dispatch, "math", 3)
    assert why_waits(dispatch, last) == (
        "job math has its quota of run: 2 items with workers, at most 2 may have one "
        "(reward.jobs.max_workers)"
    )


async def test_item_waits_for_a_job_that_lacks_more_of_its_share() -> None:
    dispatch = service({"run": 2}, JobLimits(weights={"code": 3.0}))
    *_, waits = submitted(dispatch, "math", 3)
    (first,) = submitted(dispatch, "code", 1)
    assert why_waits(dispatch, waits) == (
        "job code lacks most of its weighted share and goes first: it has 0 items with workers, weight 3, "
        "job math 2 items with workers, weight 1"
    )
    assert why_waits(dispatch, first) == "all workers of run (2) have as many items as they take"


async def test_item_waits_for_a_job_that_lacks_guaranteed_workers() -> None:
    dispatch = service({"run": 2}, JobLimits(guaranteed={"code": 1}))
    *_, waits = submitted(dispatch, "math", 3)
    submitted(dispatch, "code", 1)
    assert why_waits(dispatch, waits) == (
        "job code lacks guaranteed workers of run and goes first: it has 0 items with workers, weight 1, "
        "guaranteed 1 (reward.jobs.guaranteed)"
    )


async def test_item_waits_while_all_workers_of_its_stage_are_busy() -> None:
    dispatch = service({"compile": 3, "run": 2})
    *_, last = submitted(dispatch, "", 3)
    assert why_waits(dispatch, last) == "all workers of run (2) have as many items as they take"


async def test_name_of_a_job_stands_for_its_item_that_waits_longest() -> None:
    dispatch = service({"run": 2})
    submitted(dispatch, "math", 1)
    code = submitted(dispatch, "code", 3)
    found = state_of(dispatch, {}, 20.0, "code").item
    assert found is not None
    assert (found.request, found.job, found.ahead) == ("code/2", "code", 0)
    assert line_of(found) == (
        "code/2 of code-1, job code, waits for run since 18 s, 0 items are in front of it: "
        "all workers of run (2) have as many items as they take"
    )
    dispatch.cancel([one.id for one in code[1:]])
    running = state_of(dispatch, {}, 20.0, "code").item
    assert running is not None
    assert (running.request, running.state, running.why) == ("code/1", "runs", "")
    dispatch.result("h", "code/1", "run", Verdict(1.0, "ok"), 1.0, attempt=0)
    gone = state_of(dispatch, {}, 20.0, "code").item
    assert gone is not None
    assert line_of(gone) == "code is not here"
