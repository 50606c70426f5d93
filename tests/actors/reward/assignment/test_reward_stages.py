"""Stages of reward items: queues by stage, what one stage leaves for the next, and its loss."""

import re
from collections.abc import Mapping, Sequence

import pytest

from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.carried import MAX_BYTES, BadCarried, Carried, packed, unpacked
from gleaner.actors.reward.case_limits import CaseTimes
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.proxy import RewardProxy
from gleaner.actors.reward.scoring import ScoringWorker
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.settlement import MOST_LOSSES
from gleaner.actors.reward.stage_pools import StageLimits
from gleaner.actors.reward.stages import COMPILE, JUDGE, RUN, SCORE, Pipelines, pipeline_of
from gleaner.actors.reward.verdicts import BLOB_LOST, LOST, OK, PASSED, Judgement
from gleaner.configs.load import ConfigError, from_tree

THREE = (COMPILE, RUN, JUDGE)
CPP = {"language": "cpp"}


class Link:
    """The way to a host that keeps what it gets."""

    def __init__(self) -> None:
        self.given: list[tuple[str, str, int, bytes]] = []
        self.cancelled: list[Mapping[str, int] | None] = []

    def give(self, stage: str, items: Sequence[RewardItem]) -> None:
        self.given += [(stage, one.id, one.attempts, one.carried) for one in items]

    def cancel(self, items: Sequence[str], attempts: Mapping[str, int] | None = None) -> None:
        self.cancelled.append(attempts)

    def resize(self, stage: str, workers: int) -> None:
        pass


def item(name: str, batch: str = "step-1") -> RewardItem:
    return RewardItem(name, batch, 0.0, COMPILE, b"", "", THREE)


def passed(carried: bytes) -> Verdict:
    return Verdict(None, PASSED, carried=carried)


def two_hosts() -> tuple[ItemDispatch, Link, Link]:
    """One that compiles, one that runs and judges."""
    dispatch, near, far = ItemDispatch(list(THREE), 1000, 2), Link(), Link()
    dispatch.join("near", {COMPILE: 1}, near)
    dispatch.join("far", {RUN: 1, JUDGE: 1}, far)
    return dispatch, near, far


def test_pipeline_follows_from_the_verifier() -> None:
    tasks = {
        "plain": {},
        "cpp": {"data": "d.jsonl", "verifier": "code", "params": CPP},
        "py": {"data": "d.jsonl", "verifier": "code"},
    }
    judge = {"url": "http://judge:1/v1", "model": "m", "rubric_text": "r"}
    tree = {
        "task": [{"name": name, **one, "judge": {"weight": 0.5}} for name, one in tasks.items()],
        "reward": {"judge": judge, "stages": {"separate": True, "run": {"workers": 3, "cost": 9.0}}},
    }
    config = from_tree(tree, "test")
    made = Pipelines(config.task, config.reward)
    assert [made.of_task(name) for name in tasks] == [(SCORE, JUDGE), THREE, (SCORE, JUDGE)]
    assert made.workers() == {SCORE: 1, COMPILE: 1, RUN: 3, JUDGE: 1}
    assert [(stage.name, stage.cost) for stage in made.stages] == [
        (SCORE, 1),
        (COMPILE, 1),
        (RUN, 9),
        (JUDGE, 1),
    ]
    assert {made.of_problem("train", index) for index in range(9)} == {(SCORE, JUDGE), THREE}
    assert pipeline_of(config.task[1], staged=False) == (SCORE,)


JUDGE_SETTINGS = {"url": "http://judge:1/v1", "model": "m", "rubric_text": "r", "deadline_s": 40.0}
OWN = {"data": "d.jsonl", "verifier": "code"}
LIMITS = [
    ([{}], False, {SCORE: 20.0}),
    ([{**OWN, "params": {"deadline_s": 5.0}}], False, {SCORE: 5.0}),
    ([{**OWN, "params": CPP}], False, {SCORE: 20.0}),
    ([{**OWN, "params": {**CPP, "compile_s": 12.0}}], True, {COMPILE: 12.0, RUN: 8.0}),
    ([{**OWN, "params": {**CPP, "deadline_s": 4.0}}], True, {COMPILE: 10.0, RUN: 4.0}),
    ([{"data": "d.jsonl", "verifier": "http"}], False, {SCORE: 9.0}),
    ([{"data": "d.jsonl"}], False, {SCORE: 3.0}),
    ([{"data": "d.jsonl", "verifier": "judge"}], True, {SCORE: 40.0}),
    ([{"judge": {"weight": 0.5}}], False, {SCORE: 60.0}),
    ([{"judge": {"weight": 0.5}}], True, {SCORE: 20.0, JUDGE: 40.0}),
    ([{**OWN, "params": {"deadline_s": 5.0}}, {**OWN, "name": "long"}], False, {SCORE: 20.0}),
]


@pytest.mark.parametrize(("tasks", "separate", "timeouts_s"), LIMITS)
def test_plans_have_the_limits_of_the_stages_and_workers_that_hang_a_longer_one(
    tasks: list[dict[str, object]], separate: bool, timeouts_s: dict[str, float]
) -> None:
    tree = {
        "task": tasks,
        "reward": {
            "deadline_s": 20.0,
            "function": {"call": "m:f", "deadline_s": 3.0},
            "http": {"url": "http://h:1/s", "deadline_s": 9.0},
            "judge": JUDGE_SETTINGS,
            "stages": {"separate": separate},
        },
    }
    config = from_tree(tree, "test")
    made = Pipelines(config.task, config.reward)
    assert {stage.name: stage.timeout_s for stage in made.stages} == timeouts_s
    limits = StageLimits.of(config.reward, made, made.workers())
    assert limits.limits_s == {name: made.limit_s(name) for name in timeouts_s}
    assert all(limits.limits_s[name] >= 2 * timeouts_s[name] for name in timeouts_s)


def test_plans_have_the_deadline_of_a_shared_service_for_a_call() -> None:
    config = from_tree({"reward": {"share": {"with": "http://h:1", "deadline_s": 30.0}}}, "test")
    (stage,) = Pipelines(config.task, config.reward).stages
    assert (stage.name, stage.timeout_s) == (SCORE, 30.0)


async def test_item_passes_its_stages_and_has_one_verdict() -> None:
    dispatch, near, far = two_hosts()
    done = dispatch.submit(item("a"))
    dispatch.result("near", "a", COMPILE, passed(b"program"), 2.0, attempt=0)
    dispatch.result("far", "a", RUN, passed(b"score"), 3.0, attempt=1)
    assert not done.done()
    dispatch.result("far", "a", JUDGE, Verdict(0.5, OK), 4.0, attempt=2)
    assert (await done).score == 0.5
    assert near.given == [(COMPILE, "a", 0, b"")]
    assert far.given == [(RUN, "a", 1, b"program"), (JUDGE, "a", 2, b"score")]
    (job,) = dispatch.jobs
    assert (job.scored, job.worker_s) == (1, {COMPILE: 2.0, RUN: 3.0, JUDGE: 4.0})
    history = dispatch.end_batch("step-1")
    assert history is not None
    assert history.times_s == [(2.0, 3.0, 4.0)]
    assert len(dispatch.passed) == 0


async def test_program_that_fails_a_stage_does_not_reach_the_next() -> None:
    dispatch, _, far = two_hosts()
    done = dispatch.submit(item("a"))
    dispatch.result("near", "a", COMPILE, Verdict(0.0, "compile_failed"), 2.0, attempt=0)
    assert (await done).status == "compile_failed"
    assert far.given == []


async def test_late_result_of_an_earlier_stage_changes_nothing() -> None:
    dispatch, _, far = two_hosts()
    done = dispatch.submit(item("a"))
    for carried in (b"first", b"second"):
        dispatch.result("near", "a", COMPILE, passed(carried), 2.0, attempt=0)
    assert far.given == [(RUN, "a", 1, b"first")]
    assert dispatch.counts["late_results"] == 1
    dispatch.result("far", "a", RUN, Verdict(1.0, OK), 1.0, attempt=1)
    assert (await done).score == 1.0


async def test_stage_is_done_on_the_host_that_has_its_program() -> None:
    dispatch, one, two = ItemDispatch([COMPILE, RUN], 1000, 2), Link(), Link()
    dispatch.join("one", {COMPILE: 4, RUN: 4}, one)
    dispatch.join("two", {COMPILE: 4, RUN: 4}, two)
    for name in ("a", "b"):
        dispatch.submit(RewardItem(name, "step-1", 0.0, COMPILE, b"", "", (COMPILE, RUN)))
    dispatch.result("two", two.given[0][1], COMPILE, passed(b"x"), 1.0, attempt=0)
    assert [stage for stage, *_ in two.given] == [COMPILE, RUN]
    assert [stage for stage, *_ in one.given] == [COMPILE]


async def test_item_begins_again_where_its_program_is_lost_and_not_for_ever() -> None:
    dispatch, near, _ = two_hosts()
    done = dispatch.submit(item("a"))
    attempt = 0
    for number in range(MOST_LOSSES):
        assert len(near.given) == number + 1, "it is compiled again"
        dispatch.result("near", "a", COMPILE, passed(b"blob"), 1.0, attempt=attempt)
        dispatch.result("far", "a", RUN, Verdict(None, BLOB_LOST), 0.0, attempt=attempt + 1)
        attempt += 2
    assert (await done).status == LOST
    assert [given[2] for given in near.given] == [0, 2, 4], "no attempt has the number of an earlier one"
    assert dispatch.counts["begun_again"] == MOST_LOSSES - 1


async def test_item_of_a_lost_host_waits_in_its_stage() -> None:
    dispatch, near, _ = two_hosts()
    dispatch.submit(item("a"))
    dispatch.result("near", "a", COMPILE, passed(b"program"), 1.0, attempt=0)
    dispatch.leave("far")
    assert dispatch.items.waiting_in(RUN) == 1
    other = Link()
    dispatch.join("other", {RUN: 1}, other)
    assert other.given == [(RUN, "a", 1, b"program")]
    assert len(near.given) == 1


async def test_host_that_was_given_up_and_answers_takes_an_item_on() -> None:
    """The one that has it instead drops the older attempt alone: it may be given the next stage at once."""
    dispatch, one, two = ItemDispatch([COMPILE, RUN], 1000, 2), Link(), Link()
    dispatch.join("one", {COMPILE: 1}, one)
    dispatch.submit(RewardItem("a", "step-1", 0.0, COMPILE, b"", "", (COMPILE, RUN)))
    dispatch.leave("one")
    dispatch.join("two", {COMPILE: 1, RUN: 1}, two)
    dispatch.result("one", "a", COMPILE, passed(b"x"), 1.0, attempt=0)
    assert [(stage, attempt) for stage, _, attempt, _ in two.given] == [(COMPILE, 0), (RUN, 1)]
    assert two.cancelled == [{"a": 0}]


async def test_new_service_goes_on_behind_the_stages_that_its_hosts_report() -> None:
    """One host runs the program, another one has just compiled one, and a journal knows of a third."""
    dispatch, near, far = ItemDispatch(list(THREE), 1000, 2), Link(), Link()
    dispatch.join("near", {COMPILE: 1}, near, running={"compiled": 3})
    dispatch.join("far", {RUN: 9, JUDGE: 1}, far, running={"runs": 7}, stages={"runs": RUN})
    dispatch.result("near", "compiled", COMPILE, passed(b"made"), 1.0, attempt=3)
    dones = [dispatch.submit(item(name)) for name in ("runs", "compiled")]
    assert near.given == []
    assert far.given == [(RUN, "compiled", 0, b"made")]
    dispatch.result("far", "runs", RUN, Verdict(1.0, OK), 1.0, attempt=7)
    assert (await dones[0]).score == 1.0
    dispatch.result("far", "compiled", RUN, Verdict(0.0, OK), 1.0, attempt=0)
    assert (await dones[1]).score == 0.0


async def test_last_stage_that_passes_its_item_on_gives_no_score() -> None:
    dispatch, _, _ = two_hosts()
    done = dispatch.submit(RewardItem("a", "step-1", 0.0, COMPILE, b"", "", (COMPILE,)))
    dispatch.result("near", "a", COMPILE, passed(b""), 1.0, attempt=0)
    assert (await done).score is None


def test_score_before_a_judge_arrives_whole() -> None:
    """Also the times of its tests, from which adaptive timeouts learn."""
    own = Judgement(
        0.5, detail="two of four", parts={"tests": 0.5}, cpu_s=1.5, tests=CaseTimes(right_s=(0.1,), cut=True)
    )
    assert unpacked(packed(Carried.of_own(own))).judgement() == own
    for content in (b"garbage", b"x" * (MAX_BYTES + 1)):
        with pytest.raises(BadCarried):
            unpacked(content)
    with pytest.raises(BadCarried, match="left no score"):
        Carried().judgement()


STAGED = {"data": "d.jsonl", "verifier": "code", "params": CPP}
JUDGE_SET = {"url": "http://judge:1/v1", "model": "m", "rubric_text": "r"}


@pytest.mark.parametrize(
    ("task", "reward", "answer"),
    [
        (
            {},
            {"stages": {"separate": True, "run": {"workers": 0, "host_workers": 0}}},
            "reward.stages.run: no host has a worker of this stage; set workers",
        ),
        (
            {"judge": {"weight": 0.5}},
            {"judge": JUDGE_SET, "stages": {"separate": True, "judge": {"workers": 0, "host_workers": 0}}},
            "reward.stages.judge: no host has a worker of this stage",
        ),
        (
            {},
            {"stages": {"separate": True, "run": {"workers": 0}, "compile": {"workers": 0}}},
            "reward.stages.compile.workers, reward.stages.run.workers: one of them must be above 0",
        ),
        ({}, {"stages": {"separate": True, "link": {}}}, "reward.stages.link: unknown key"),
        (
            {},
            {"stages": {"separate": True, "run": {"cost": 0}}},
            "reward.stages.run.cost: expected a number > 0",
        ),
        ({}, {"stages": {"separate": True, "run": {"cost": -2}}}, "reward.stages.run.cost: expected"),
        (
            {},
            {"timeouts": {"min_s": 9.0, "max_s": 3.0}},
            "reward.timeouts.min_s: expected at most max_s (3), got 9",
        ),
        (
            {"judge": {"gate": 1.0}},
            {"judge": JUDGE_SET, "stages": {"separate": True}},
            "judge.weight: expected more than 0 beside a gate",
        ),
        (
            {"judge": {"weight": 0.5}},
            {"judge": {**JUDGE_SET, "model": ""}, "stages": {"separate": True}},
            "reward.judge.model: is empty: set it to the model's name",
        ),
        (
            {"judge": {"weight": 0.5}},
            {"judge": {"model": "m", "rubric_text": "r"}, "stages": {"separate": True}},
            "reward.judge.url: is empty",
        ),
        (
            {},
            {"stages": {"separate": True}, "share": {"with": "cluster"}},
            "reward.stages.separate: expected false where share.with names a service",
        ),
    ],
)
def test_settings_with_which_a_stage_cannot_score_are_refused_with_their_name(
    task: dict[str, object], reward: dict[str, object], answer: str
) -> None:
    """When they are read, or as `rlctl check`, the proxy and a service refuse them."""
    try:
        config = from_tree({"task": [{"name": "cpp", **STAGED, **task}], "reward": reward}, "test")
    except ConfigError as problem:
        found = str(problem)
    else:
        found = Pipelines(config.task, config.reward).problem()
        with pytest.raises(ValueError, match=re.escape(answer)):
            RewardProxy(RewardSettings.of(config), "", _never)
    assert answer in found


async def _never(*_: object) -> ScoringWorker:
    raise AssertionError("no worker is started")
