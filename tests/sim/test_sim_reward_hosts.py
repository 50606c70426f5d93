"""Reward hosts of a simulated cluster: they score, and others take their place."""

from collections import Counter

import pytest

from gleaner.actors.protocol.cluster import CloudNotice, PreemptionNotice
from gleaner.actors.protocol.planning import PlanWorkers
from gleaner.actors.protocol.reward import ItemsScored
from gleaner.configs.load import from_tree
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.models.job_model import JobModel
from gleaner.sim.models.scorer import ScorerLaw
from gleaner.sim.models.shapes import model_shape
from gleaner.sim.run_setup import QUICK_LENGTHS, RunSetup, role_of


def cluster(planner: str = "static", steps: int = 1) -> SimCluster:
    """A small job with a slow verifier, one worker beside the proxy, and two hosts with two workers each."""
    config = from_tree(
        {
            "job": {"name": "rewards", "steps": steps},
            "rollout": {"prompts": 4, "samples": 4},
            "reward": {"workers": 1, "host_workers": 2, "planner": {"kind": planner}},
            "task": {"heldout_problems": 4},
        },
        "test",
    )
    model = JobModel(model_shape("quickstart"), QUICK_LENGTHS, scorer=ScorerLaw(median_s=0.4))
    return SimCluster(RunSetup(config, seed=3, rewards=2, job_model=model, deadline_s=300.0))


def test_job_with_planned_reward_hosts_runs_to_its_end() -> None:
    scoring = cluster("distrs")
    hosts: Counter[str] = Counter()
    plans: Counter[str] = Counter()

    def look(seen: ObservedMessage) -> None:
        if isinstance(seen.message, ItemsScored) and seen.direction == "in":
            hosts[seen.message.host] += len(seen.message.results)
        elif isinstance(seen.message, PlanWorkers) and seen.direction == "in":
            plans[seen.process.name] += 1

    scoring.watch(look)
    outcome = scoring.run()
    assert outcome.ended == "done", outcome.reason
    assert set(hosts) == {"rewards-1/reward", "rewards-2/reward"}
    assert set(plans) == {"head/reward-planner"}
    assert outcome.findings == []


def test_machine_takes_the_place_of_a_drained_reward_host() -> None:
    scoring = cluster(steps=3)
    injector = FaultInjector(scoring)
    stays = [scoring.stay("rewards-1")]
    injector.at(8.0, lambda: stays.append(injector.notice("rewards-1", 2.0)))
    injector.at(9.0, lambda: stays.append(injector.kill_host("rewards-2")))
    injector.at(19.0, lambda: stays.append(scoring.stay("rewards-1")))
    injector.at(19.0, lambda: stays.append(scoring.hosts["rewards-1"].find("reward-host") is not None))
    outcome = scoring.run()
    assert outcome.ended == "done", outcome.reason
    first, noticed, killed, newest, scores = stays
    assert (noticed, killed, scores) == (True, True, True)
    assert newest != first


@pytest.mark.parametrize("taken_back", [False, pytest.param(True, marks=pytest.mark.long)])
def test_notice_of_a_host_that_ended_does_not_reach_its_successor(taken_back: bool) -> None:
    scoring = cluster(steps=3)
    injector = FaultInjector(scoring)
    noticed: list[float] = []
    given: list[bool] = []

    def give() -> None:
        if taken_back:
            given.append(injector.false_notice("rewards-1", 120.0, 10.0, hint=False))
        else:
            given.append(injector.notice("rewards-1", 120.0))

    def look(seen: ObservedMessage) -> None:
        if isinstance(seen.message, CloudNotice | PreemptionNotice) and seen.direction == "in":
            noticed.append(scoring.loop.now_s)

    scoring.watch(look)
    injector.at(8.0, lambda: injector.kill_host("head"))  # it has the registry: the notice cannot be sent yet
    injector.at(8.1, give)
    injector.at(8.5, lambda: injector.kill_host("rewards-1"))
    injector.at(9.0, lambda: injector.start_host("rewards-1"))
    injector.at(9.0, lambda: injector.start_host("head"))
    outcome = scoring.run()
    assert outcome.ended == "done", outcome.reason
    assert (given, noticed) == ([True], [])


def test_reward_hosts_have_a_role_and_no_zone() -> None:
    setting = cluster().setting
    assert setting.reward_hosts() == ["rewards-1", "rewards-2"]
    assert [role_of(name) for name in ("rewards-1", "spot-1", "reserved-1")] == [
        "reward",
        "preemptible",
        "reserved",
    ]
    assert setting.zone("rewards-1") == ""
