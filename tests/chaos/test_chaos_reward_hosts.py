"""Reward hosts in campaigns: which faults are drawn, what the checks find, whole runs."""

from collections.abc import Iterable
from unittest.mock import Mock

import msgspec
import pytest

from gleaner.actors.names import MANAGER, REWARD
from gleaner.actors.protocol.instances import Withdraw, Withdrawn
from gleaner.actors.protocol.reward import (
    CancelItems,
    CancelScores,
    ItemResult,
    ItemsScored,
    ItemToScore,
    OfferWorkers,
    Score,
    ScoreItems,
    WorkersTaken,
)
from gleaner.chaos.bounds import bearable, bounds_of
from gleaner.chaos.faults import (
    ClockJump,
    CrashActor,
    DiskFull,
    ForeignResult,
    KillHost,
    KillInCommit,
    KillProcess,
    Notice,
    SickVerifier,
)
from gleaner.chaos.invariants.facts import Fact, MessagePassed
from gleaner.chaos.invariants.reward_hosts import RewardHostItems
from gleaner.chaos.plan import Loaded, load, names
from gleaner.chaos.recoveries import Recoveries
from gleaner.chaos.schedule import Schedule
from gleaner.chaos.sim_run import run
from gleaner.configs.load import from_tree
from gleaner.configs.schema import Config
from gleaner.sim.foreign_items import ForeignItems
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.supervisor import Address, Message

HOST = "rewards-1/reward"
PROXY = Address(name=REWARD, endpoint="tcp://1", incarnation=1)
WITH_HOSTS = ("rewards", "pipelines", "hunt-cancelled", "hunt-shared")
"""Campaigns whose runs have reward hosts."""


def passed(at_s: float, message: Message, way: str, *, source: str = HOST, to: str = REWARD) -> MessagePassed:
    return MessagePassed(at_s, "head/reward", way, "ask", source, to, message)


def offered(at_s: float = 0.0, epoch: str = "1.1", workers: int = 2) -> list[Fact]:
    actor = Address(name=HOST, endpoint="tcp://2", incarnation=1)
    offer = OfferWorkers(host=HOST, actor=actor, workers={"score": workers}, running={})
    taken = WorkersTaken(proxy=PROXY, epoch=epoch)
    return [passed(at_s, offer, "in"), passed(at_s, taken, "out", source=REWARD, to=HOST)]


def given(at_s: float, *items: str, epoch: str = "1.1") -> Fact:
    work = [ItemToScore(id=item, attempt=0, stage="score", work=b"") for item in items]
    return passed(at_s, ScoreItems(epoch=epoch, items=work), "out", source=REWARD, to=HOST)


def came_back(at_s: float, *items: str, epoch: str = "1.1", took_s: float = 0.4) -> Fact:
    results = [
        ItemResult(id=item, attempt=0, stage="score", score=1.0, status="ok", took_s=took_s) for item in items
    ]
    return passed(at_s, ItemsScored(host=HOST, epoch=epoch, results=results), "in")


def found(facts: Iterable[Fact]) -> list[str]:
    check = RewardHostItems()
    return [text for fact in facts for text in check.see(fact)]


# -- the checks --


def test_items_beyond_the_credit_of_a_host_are_found() -> None:
    many = [f"r{number}" for number in range(17)]
    assert found([*offered(), given(1.0, *many[:16])]) == []
    (first,) = found([*offered(), given(1.0, *many)])
    assert first == f"{HOST} has 17 items of stage score; its 2 workers may have 16"
    learnt = [*offered(), given(1.0, "a", "b"), came_back(2.0, "a"), given(4.0, "c")]
    assert found(learnt) == []
    (later,) = found([*learnt, given(5.0, "d")])
    assert later == f"{HOST} has 3 items of stage score; its 2 workers may have 2"


def test_credit_of_cancelled_items_is_free_before_the_host_knows() -> None:
    """The message that takes them back may leave after the one that brings others."""
    asked = [
        passed(0.0, Score(request=name, split="train", index=0, tokens=b"", batch="b"), "in", source=MANAGER)
        for name in ("a", "b", "c", "d", "e")
    ]
    first = [*offered(), *asked, came_back(0.5), given(1.0, "x"), came_back(1.4, "x"), given(2.0, "a", "b")]
    cancelled = passed(2.1, CancelScores(requests=["a", "b"]), "in", source=MANAGER)
    assert found([*first, cancelled, given(2.1, "c", "d")]) == []
    assert found([*first, given(2.1, "c", "d")]) == [
        f"{HOST} has 4 items of stage score; its 2 workers may have 2"
    ]
    assert found([*first, cancelled, given(2.1, "c", "d", "e")]) == [
        f"{HOST} has 3 items of stage score; its 2 workers may have 2"
    ]


def test_cancelled_item_that_a_host_gets_is_found() -> None:
    score = passed(
        0.5, Score(request="a", split="train", index=0, tokens=b"", batch="step-1"), "in", source=MANAGER
    )
    cancel = passed(1.0, CancelScores(requests=["a"]), "in", source=MANAGER)
    (text,) = found([*offered(), score, cancel, given(3.0, "a")])
    assert text == f"{HOST} gets a, which was cancelled 2.0 s before"
    again = msgspec.structs.replace(score, at_s=2.0)
    assert found([*offered(), score, cancel, again, given(3.0, "a")]) == [], "it was requested anew"
    assert found([*offered(), score, cancel, *offered(2.0, "2.1"), given(3.0, "a", epoch="2.1")]) == []


def test_items_for_a_host_that_drains_are_found() -> None:
    leaves = passed(1.0, Withdraw(instance=HOST, grace_s=20.0, leaves=True), "in")
    assert found([*offered(), leaves, given(1.1, "a")]) == [], "it was on its way"
    (text,) = found([*offered(), leaves, given(3.0, "a")])
    assert text == f"{HOST} gets 1 items; it has drained for 2.0 s"
    repeated = [*offered(), given(0.5, "a"), leaves, given(3.0, "a")]
    assert found(repeated) == [], "the message was sent again"


def test_paths_of_reward_hosts_are_counted_from_messages() -> None:
    recoveries = Recoveries()
    facts = [
        given(1.0, "a", "b"),
        came_back(2.0, "a"),
        came_back(3.0, "b", epoch="2.1"),
        passed(4.0, CancelItems(epoch="2.1", items=["c", "d"]), "out", source=REWARD, to=HOST),
        passed(5.0, Withdrawn(handed_over=1), "out", source=REWARD, to="rewards-1/agent"),
    ]
    for fact in facts:
        assert isinstance(fact, MessagePassed)
        recoveries.message_passed(fact)
    assert recoveries.counts() == {
        "rewards.cancelled": 2,
        "rewards.drained": 1,
        "rewards.outlived_proxy": 1,
    }


def test_host_answers_only_items_of_another_one_under_its_own_offer() -> None:
    foreign = ForeignItems("rewards-2/reward", count=2)

    def results(fact: Fact) -> list[ItemsScored]:
        assert isinstance(fact, MessagePassed)
        seen = ObservedMessage(Mock(), "out", fact.mode, fact.source, fact.to, fact.message)
        return list(foreign.results(seen))

    own = msgspec.structs.replace(given(1.0, "a", epoch="1.2"), to="rewards-2/reward")
    assert results(given(0.5, "x")) == [], "it has no offer yet"
    assert results(own) == []
    (sent,) = results(given(2.0, "b", "c"))
    assert (sent.host, sent.epoch, [it.id for it in sent.results]) == ("rewards-2/reward", "1.2", ["b"])
    assert sent.results[0].score not in (0.0, 1.0), "the checks of verdicts find it where it counts"
    assert len(results(given(3.0, "d"))) == 1
    assert results(given(4.0, "e")) == []


# -- the faults that are drawn --


def test_only_campaigns_with_reward_hosts_draw_their_faults() -> None:
    for name in names():
        loaded = load(name)
        drawn = [fault for seed in range(40) for fault in loaded.schedule(seed).faults]
        hit = {getattr(fault, "process", "") for fault in drawn} & {"reward-host", "reward-planner"}
        places = {
            getattr(fault, where, "").partition("/")[0] for fault in drawn for where in ("host", "a", "b")
        }
        assert bool(hit or "@reward" in places) == (name in WITH_HOSTS), name
        assert any(isinstance(fault, ForeignResult) for fault in drawn) == (name in WITH_HOSTS), name
        cut = {fault.process for fault in drawn if isinstance(fault, KillInCommit)}
        assert ("reward" in cut) == (name in WITH_HOSTS), name


def test_rewards_campaign_draws_each_target_of_the_reward_tier() -> None:
    loaded = load("rewards")
    drawn = [fault for seed in range(100) for fault in loaded.schedule(seed).faults]
    assert {fault.actor for fault in drawn if isinstance(fault, CrashActor)} >= {"reward", "proxy", "planner"}
    assert {fault.process for fault in drawn if isinstance(fault, KillProcess)} >= {
        "reward-host",
        "reward-planner",
    }
    commits = [fault for fault in drawn if isinstance(fault, KillInCommit) and fault.process == "reward"]
    assert {fault.torn for fault in commits} == {False, True}
    assert "kill_in_commit: reward proxy" in loaded.campaign.wanted_shapes
    for kind in (KillHost, Notice):
        hosts = {fault.host.partition("/")[0] for fault in drawn if isinstance(fault, kind)}
        assert {"@reward", "@preemptible"} <= hosts
    planners = {loaded.config_of(seed).reward.planner.kind for seed in range(20)}
    assert planners == {"static", "distrs"}


def test_reward_hosts_may_die_as_often_as_preemptible_ones() -> None:
    deaths = [KillProcess(at_s=9.0, host="@reward/1", process="reward-host") for _ in range(30)]
    assert bearable(deaths, bounds_of(Config())) == deaths


# -- runs --


def test_result_of_a_host_that_was_not_given_the_item_is_dropped_in_a_run() -> None:
    loaded = load("rewards")
    seed = next(seed for seed in range(50) if not loaded.config_of(seed).reward.share.with_)
    fault = ForeignResult(at_s=7.0, host="@reward/1", count=3)
    report = run(loaded, seed, Schedule(seed=seed).with_faults([fault]))
    assert report.broken == ()
    assert report.fired == {"foreign_result": 3}
    assert report.counts["rewards.foreign_results"] >= 3


@pytest.mark.parametrize("seed", [2, pytest.param(9, marks=pytest.mark.long)])
def test_job_survives_faults_of_its_reward_hosts(seed: int) -> None:
    report = run(load("rewards"), seed)
    assert report.broken == ()
    assert report.ended == "done"


def with_settings(loaded: Loaded, settings: dict[str, object], deadline_s: float) -> Loaded:
    """The campaign with these settings of `[reward]`."""
    tree = {**loaded.campaign.settings}
    tree["reward"] = {**msgspec.convert(tree["reward"], dict[str, object]), **settings}
    campaign = msgspec.structs.replace(loaded.campaign, settings=tree, deadline_s=deadline_s)
    return msgspec.structs.replace(loaded, campaign=campaign, config=from_tree(tree, "test"))


AWAY_S = 300.0


@pytest.mark.long  # six simulated minutes
def test_job_waits_for_a_judge_that_is_away_for_five_minutes() -> None:
    """No response counts as wrong meanwhile: the check of verdicts knows the true scores."""
    loaded = with_settings(load("pipelines"), {"sick_s": 2 * AWAY_S}, deadline_s=3 * AWAY_S)
    fault = SickVerifier(at_s=9.0, how="judge_away", for_s=AWAY_S)
    report = run(loaded, 3, Schedule(seed=3).with_faults([fault]))
    assert report.broken == ()
    assert report.ended == "done"
    assert report.fired == {"sick_verifier": 1}
    assert report.virtual_s > AWAY_S


@pytest.mark.long
@pytest.mark.parametrize(("memory", "by_s"), [(False, 3600.0), (True, -3600.0)])
def test_full_disk_or_memory_and_another_clock_of_a_host_cost_no_host(memory: bool, by_s: float) -> None:
    """Its deadlines and its offers are of the monotonic clock: no wait is late, and no host is lost."""
    full = DiskFull(at_s=8.0, host="@reward/0", for_s=25.0, memory=memory)
    jump = ClockJump(at_s=12.0, host="@reward/0", by_s=by_s)
    report = run(load("pipelines"), 3, Schedule(seed=3).with_faults([full, jump]))
    assert report.broken == ()
    assert (report.ended, report.fired) == ("done", {"disk_full": 1, "clock_jump": 1})
    assert report.counts.get("rewards.lost_with_host", 0) == 0
    assert report.counts.get("watches.silent", 0) == 0
    assert (report.counts.get("rewards.tried_elsewhere", 0) > 0) == memory
