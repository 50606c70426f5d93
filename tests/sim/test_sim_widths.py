"""Widths of engines in whole simulated jobs: relaunches between steps, with and without faults."""

import logging
from dataclasses import replace
from functools import partial

import pytest

from gleaner.actors.cluster.seeding import SeedingState
from gleaner.actors.cluster.width_planner import WidthPlanner, WidthState
from gleaner.actors.protocol.step_times import StepTimes
from gleaner.actors.training.records import Restart, Step
from gleaner.configs.load import load
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.rlctl.what_if_setup import WhatIfOptions, setting_of
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
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


@pytest.mark.parametrize("seed", range(3))
def test_job_ends_with_its_planned_width_when_the_head_and_engines_are_killed(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = SimCluster(setup([*NARROWS, "fleet.restarts=5"], seed=seed))
    faults, fired = FaultInjector(cluster), list[bool]()

    def kill(host: str, kind: str) -> None:
        fired.append(faults.kill_process(host, kind))

    for when_s, host, kind in (
        (6.0, "spot-1", "engine"),
        (9.0, "head", "rollout"),
        (12.0, "spot-2", "agent"),
        (15.0, "spot-1", "engine"),
    ):
        faults.at(when_s + seed, partial(kill, host, kind))
    ended(cluster)
    assert any(fired), "no fault was possible: this shows nothing"
    assert "engine relaunched: width 1 after 2" in texts(caplog, "engine relaunched")


def test_retractions_of_full_caches_reach_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four engines of width 1 with 72,000 tokens of cache each, for 24 x 8 responses of some thousands."""
    planned: list[tuple[int, WidthState]] = []
    plan = WidthPlanner.next

    def recorded(
        self: WidthPlanner, state: WidthState, seeding: SeedingState, times: StepTimes
    ) -> WidthState:
        after = plan(self, state, seeding, times)
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
