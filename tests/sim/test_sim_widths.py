"""Widths of engines in whole simulated jobs: relaunches between steps, with and without faults."""

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf

import pytest

from gleaner.actors.cluster.seeding import SeedingState
from gleaner.actors.cluster.width_planner import WidthPlanner, WidthState
from gleaner.actors.protocol.cluster import NodeHello, Plan, PlanNext, PlanWidth, WidthPlanned
from gleaner.actors.protocol.instances import Registered
from gleaner.actors.protocol.rollout import BatchesWhole, StepEnded, SubmitBatch
from gleaner.actors.protocol.step_times import StepTimes
from gleaner.actors.training.records import Restart, Step
from gleaner.configs.load import load
from gleaner.nodeagent.width_trial import TRIES
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.rlctl.what_if_setup import WhatIfOptions, setting_of
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.job_model import JobModel
from gleaner.sim.outcome import Outcome
from gleaner.sim.run_setup import QUICK_LENGTHS, RunSetup

HOSTS = ("spot-1", "spot-2")
SMALL = [
    "job.steps=7",
    "task.heldout_problems=4",
    "rollout.prompts=6",
    "rollout.samples=4",
    "engine.slots=8",
    "engine.kind=sglang",
    "engine.relaunch_s=3",
    "engine.start_s=5",
    "fleet.trace=",
    f"fleet.n_prem_max={len(HOSTS)}",
    "fleet.restarts=0",
]
NARROWS = [*SMALL, "engine.widths=[2, 1]", "engine.width_plan=paper"]
"""No request loses its cache, so the paper's rule halves the width after four steps."""


def setup(settings: list[str], seed: int = 0) -> RunSetup:
    rig = HostDevices("h100", 2, 2)
    return RunSetup(load("quickstart", settings), seed=seed, preemptible=rig, deadline_s=600.0)


def ended(cluster: SimCluster) -> Outcome:
    outcome = cluster.run()
    assert (outcome.ended, outcome.findings) == ("done", []), outcome.reason
    assert audit(evidence(outcome)) == []
    return outcome


def texts(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [text for record in caplog.records if words in (text := record.getMessage())]


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="nodeagent")


def test_engines_are_relaunched_once_each_when_the_plan_changes(caplog: pytest.LogCaptureFixture) -> None:
    outcome = ended(SimCluster(setup(NARROWS)))
    assert texts(caplog, "engine relaunched") == ["engine relaunched: width 1 after 2"] * len(HOSTS)
    assert [one for one in outcome.history if isinstance(one, Restart)] == []
    assert len([one for one in outcome.history if isinstance(one, Step)]) == 7


def test_engines_keep_their_width_when_no_plan_changes_it(caplog: pytest.LogCaptureFixture) -> None:
    ended(SimCluster(setup([*SMALL, "engine.widths=[2, 1]"])))
    assert texts(caplog, "relaunched") == []


def test_host_goes_back_when_the_model_does_not_fit_the_new_width(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two engines of width 1 end at their start; no restart is counted, of which there may be none."""
    big = replace(
        setup(NARROWS),
        job_model=JobModel.named("qwen3-32b", QUICK_LENGTHS),
        reserved=HostDevices("h100", 8, 8),
        preemptible=HostDevices("l40s", 2, 2),
        egress_bytes_s=1e12,
        deadline_s=6000.0,
    )
    outcome = ended(SimCluster(replace(big, config=big.job_model.settings(big.config))))
    back = "engine of width 1 ended 2 times on trial: back to width 2"
    assert texts(caplog, "back to width") == [back] * len(HOSTS)
    assert [one for one in outcome.history if isinstance(one, Restart)] == []


class Moments:
    """What happened when, of the steps of a cluster. Times in virtual seconds.

    Attributes:
        narrowed_s: the width was decided that differs from the one before. relaunched_s: by host, its engine
            was launched with it.
        ended_s, submitted_s: by batch, the trainer had the step, the manager had the batch.
        asked: open batches of each decision before a plan, and those that were whole then.
        planned: measurements that plans were made of.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.narrowed_s = inf
        self.relaunched_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}
        self.submitted_s: dict[str, float] = {}
        self.asked: list[tuple[set[str], set[str]]] = []
        self.planned: list[StepTimes] = []
        self._whole: set[str] = set()
        cluster.watch(self._look)

    def _look(self, seen: ObservedMessage) -> None:
        now_s = self._cluster.loop.now_s
        if seen.direction == "in":
            return
        match seen.message:
            case WidthPlanned(changed=True):
                self.narrowed_s = min(self.narrowed_s, now_s)
            case NodeHello(width=1):
                self.relaunched_s.setdefault(seen.process.host.name, now_s)
            case StepEnded(batch=batch):
                self.ended_s[batch] = now_s
            case SubmitBatch(batch=event):
                self.submitted_s.setdefault(event.batch, now_s)
            case BatchesWhole(batches=batches):
                self._whole.update(batches)
            case PlanWidth():
                self.asked.append((self.submitted_s.keys() - self.ended_s.keys(), set(self._whole)))
            case PlanNext(times=StepTimes() as times):
                self.planned.append(times)


def test_engines_relaunch_while_the_trainer_updates() -> None:
    """The fourth step without a retraction narrows them: after its rollout, before its end."""
    cluster = SimCluster(setup([*NARROWS, "job.steps=12"]))
    seen = Moments(cluster)
    outcome = ended(cluster)
    step = max(step for step in range(1, 12) if seen.submitted_s[f"step-{step}"] < seen.narrowed_s)
    next_s = seen.submitted_s[f"step-{step + 1}"]
    assert seen.narrowed_s < seen.ended_s[f"step-{step}"] < next_s
    assert seen.relaunched_s.keys() == set(HOSTS)
    assert all(at_s < next_s for at_s in seen.relaunched_s.values())
    steps = [one for one in outcome.history if isinstance(one, Step)]
    assert all(one.staleness_max == 0 for one in steps), "each step is rolled out with its own weights"
    measured = seen.planned[step - 1]
    assert measured.next_prem == len(HOSTS), "hosts that relaunch are there"
    assert measured.instance_engines == 1.0, "the step had engines of width 2"


def test_width_is_decided_before_the_plan_only_when_the_open_batch_is_whole() -> None:
    cluster = SimCluster(setup([*NARROWS, "job.steps=9", "job.eval_every=2"]))
    seen = Moments(cluster)
    ended(cluster)
    assert len(seen.asked) > 4
    for opened, whole in seen.asked:
        assert {batch for batch in opened if batch.startswith("step-")} <= whole
    assert seen.relaunched_s.keys() == set(HOSTS)


@pytest.mark.parametrize("actor", ["controller", "scheduler"])
def test_width_stays_when_an_actor_dies_between_its_decision_and_the_plan(
    actor: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = SimCluster(setup([*NARROWS, "job.steps=40", "fleet.restarts=5"]))
    faults, struck = FaultInjector(cluster), list[str]()

    def look(seen: ObservedMessage) -> None:
        match seen.message:
            case WidthPlanned(changed=True) if not struck and seen.direction != "in":
                struck.append(actor)
                cluster.loop.call_later(0.0, strike)

    def strike() -> None:
        assert faults.crash_actor("head", "agent", actor)

    cluster.watch(look)
    ended(cluster)
    assert struck == [actor]
    assert texts(caplog, "engine relaunched") == ["engine relaunched: width 1 after 2"] * len(HOSTS)


class Relaunches:
    """What is seen of the relaunches of a cluster's engines with width 1. Times in virtual seconds.

    Attributes:
        planned_s: a plan had the width for the first time.
        begun_s: by host: it launched an engine with the width for the first time.
        over_s: by host: the manager had registered an engine of the width.
        width: by host, the last one of its engine.
    """

    def __init__(self, cluster: SimCluster, struck: Callable[[str], None]) -> None:
        """struck: called with "plan" when hosts are called for the width, and with each host that begins."""
        self._cluster, self._struck = cluster, struck
        self.planned_s = inf
        self.begun_s: dict[str, float] = {}
        self.over_s: dict[str, float] = {}
        self.width: dict[str, int] = {}
        cluster.watch(self._look)

    def _look(self, seen: ObservedMessage) -> None:
        host, now_s = seen.process.host.name, self._cluster.loop.now_s
        match seen.message:
            case Plan(width=1) if self.planned_s == inf:
                self.planned_s = now_s
                self._struck("plan")
            case NodeHello(width=width) if seen.direction == "out" and width:
                self.width[host] = width
                if width == 1 and host not in self.begun_s:
                    self.begun_s[host] = now_s
                    self._struck(host)
            case Registered() if seen.direction == "in" and host in self.begun_s:
                self.over_s[host] = now_s


@pytest.mark.parametrize("seed", range(3))
def test_job_ends_with_its_planned_width_when_processes_die_in_the_relaunch(seed: int) -> None:
    """Of the first host the engine dies, of the second one the node agent, of the head the manager."""
    cluster = SimCluster(setup([*NARROWS, "job.steps=40", "fleet.restarts=5"], seed=seed))
    faults, rng = FaultInjector(cluster), random.Random(f"{seed}/kills")
    struck_s: dict[str, float] = {}

    def strike(host: str, kind: str) -> None:
        assert faults.kill_process(host, kind), f"{host} has no {kind} to kill"
        struck_s[host] = cluster.loop.now_s

    def begun(what: str) -> None:
        where, kind = {"plan": ("head", "rollout"), "spot-1": ("spot-1", "engine")}.get(what, (what, "agent"))
        cluster.loop.call_later(rng.uniform(0.1, 2.0), partial(strike, where, kind))

    seen = Relaunches(cluster, begun)
    ended(cluster)
    assert struck_s.keys() == {"head", *HOSTS}
    assert seen.planned_s < struck_s["head"] < min(seen.over_s.values())
    for host in HOSTS:
        assert seen.begun_s[host] < struck_s[host] < seen.over_s[host], host
    assert seen.width == dict.fromkeys(HOSTS, 1)


def test_host_goes_back_when_its_engine_is_killed_in_each_launch(caplog: pytest.LogCaptureFixture) -> None:
    cluster = SimCluster(setup([*NARROWS, "job.steps=40"]))
    faults, struck = FaultInjector(cluster), list[bool]()

    def strike() -> None:
        if len(struck) < TRIES and (process := faults.process("spot-1", "engine")) is not None:
            struck.append(faults.kill_process("spot-1", process.kind))
        if len(struck) < TRIES:
            cluster.loop.call_later(1.5, strike)

    def begun(what: str) -> None:
        if what == "spot-1":
            cluster.loop.call_later(1.0, strike)

    seen = Relaunches(cluster, begun)
    outcome = ended(cluster)
    assert struck == [True] * TRIES
    assert texts(caplog, "back to width") == ["engine of width 1 ended 2 times on trial: back to width 2"]
    assert seen.width == {"spot-1": 2, "spot-2": 1}
    assert [one for one in outcome.history if isinstance(one, Restart)] == []


def test_retractions_of_full_caches_reach_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four engines of width 1 with 72,000 tokens of cache each, for 24 x 8 responses of some thousands."""
    planned: list[tuple[int, WidthState]] = []
    plan = WidthPlanner.next

    def recorded(
        self: WidthPlanner, state: WidthState, seeding: SeedingState, times: StepTimes, step: int
    ) -> WidthState:
        after = plan(self, state, seeding, times, step)
        planned.append((times.retracted, after))
        return after

    monkeypatch.setattr(WidthPlanner, "next", recorded)
    words = WhatIfOptions(
        model="qwen3-14b",
        reserved="h100x8:tp2",
        preemptible="l40sx4:tp1",
        lengths="5400,0.8,0.6",
        token_scale=256,
        gbit_s=200.0,
    )
    sets = ["job.steps=1", "task.heldout_problems=1", "rollout.prompts=24", "rollout.samples=8"]
    sets += ["engine.kind=sglang", "engine.widths=[1, 2, 4]", "engine.width_plan=paper", "engine.slots=64"]
    ended(SimCluster(setting_of(load("rlboost-14b", [*sets, "fleet.n_prem_max=2"]), words)))
    ((retracted, after),) = planned
    assert retracted > 0
    assert after.kinds["plain"].retracted == (retracted,)
    assert after.paces[1].weight_tokens > after.paces[1].cache_tokens > 0
