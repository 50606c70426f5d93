"""Health checks in a whole simulated job.

A hung process is replaced within its limit, and the cause is named. A busy process, or one whose parent was
paused, is left alone.
"""

from functools import wraps

import pytest
from whole_system import SMALL

from gleaner.actors.training.records import Restart, Step
from gleaner.actors.training.work import StepStats
from gleaner.configs.load import load
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.models.trainer_work import SimTrainerWork
from gleaner.sim.outcome import Outcome
from gleaner.sim.run_setup import RunSetup

FROZEN_AT_S = 5.0
PEACE_S = 15.0  # a run without faults is over by then
CHILDREN = [
    ("head", "rollout"),
    ("head", "reward"),
    ("reserved-1", "trainer"),
    ("reserved-1", "transfer"),
    ("spot-1", "engine"),
    ("spot-1", "transfer"),
]
AGENTS = [("head", "agent"), ("reserved-1", "agent"), ("spot-1", "agent")]
HUNG_S, START_S, WATCHDOG_S = 11.0, 5.0, 23.0  # with the poll that detects it, and the start of the next life


def run(host: str, kind: str, for_s: float, *settings: str) -> Outcome:
    """A job of which one process is frozen in its first steps; for ever if `for_s` is 0."""
    config = load("quickstart", [*SMALL, "job.steps=8", *settings])
    cluster = SimCluster(RunSetup(config, seed=5, deadline_s=200.0))
    breaking = FaultInjector(cluster)
    fired: list[bool] = []
    breaking.at(FROZEN_AT_S, lambda: fired.append(breaking.freeze(host, kind)))
    if for_s:
        breaking.at(FROZEN_AT_S + for_s, lambda: fired.append(breaking.thaw(host, kind)))
    outcome = cluster.run()
    assert fired[0]
    return outcome


def causes(outcome: Outcome) -> dict[str, str]:
    """Causes of restarts, by process."""
    return {record.actor: record.cause for record in outcome.history if isinstance(record, Restart)}


@pytest.mark.parametrize(("host", "kind"), CHILDREN)
def test_frozen_child_process_is_replaced_within_its_limit(host: str, kind: str) -> None:
    outcome = run(host, kind, 0.0)
    assert (outcome.ended, outcome.reason) == ("done", "")
    assert outcome.findings == []
    assert outcome.virtual_s < PEACE_S + HUNG_S + START_S
    assert audit(evidence(outcome)) == []
    restarts = causes(outcome)
    if host != "spot-1":  # the job may end before the limit of an instance that it does not need
        assert restarts[f"{host}/{kind}"].startswith("SIGKILL (no heartbeat for 10.")
    assert set(restarts) <= {f"{host}/{kind}"}, "other processes were restarted instead"


@pytest.mark.parametrize(("host", "kind"), AGENTS)
def test_frozen_node_agent_is_replaced_by_service_watchdog(host: str, kind: str) -> None:
    outcome = run(host, kind, 0.0)
    assert (outcome.ended, outcome.reason) == ("done", "")
    assert outcome.virtual_s < PEACE_S + WATCHDOG_S + START_S
    assert audit(evidence(outcome)) == []


@pytest.mark.parametrize(("host", "kind"), AGENTS)
def test_job_continues_after_agent_freeze_up_to_the_limit(host: str, kind: str) -> None:
    outcome = run(host, kind, 20.0)
    assert (outcome.ended, outcome.reason) == ("done", "")
    assert outcome.virtual_s < PEACE_S + WATCHDOG_S + START_S
    assert audit(evidence(outcome)) == []


@pytest.mark.parametrize("host", ["head", "reserved-1"])
def test_stopped_node_agent_kills_none_of_its_children(host: str) -> None:
    """The pause is longer than a child's limit and shorter than the agent's own."""
    outcome = run(host, "agent", 15.0)
    assert outcome.ended == "done"
    assert "no heartbeat" not in str(causes(outcome))


@pytest.mark.long
def test_trainer_with_long_computation_is_not_killed() -> None:
    """The trainer's loop turns meanwhile and sends heartbeats."""
    limits = ["liveness.dead_s=0.5", "liveness.beat_s=0.1"]  # hung after 1 s
    config = load("quickstart", [*SMALL, "job.steps=2", *limits])
    cluster = SimCluster(RunSetup(config, seed=5, deadline_s=200.0))
    breaking = FaultInjector(cluster)
    breaking.at(4.0, lambda: breaking.slow("reserved-1", "trainer", 100.0))
    outcome = cluster.run()
    assert outcome.ended == "done"
    trained_s = max(record.training_s for record in outcome.history if isinstance(record, Step))
    assert trained_s > 10.0, "pieces of seconds, each longer than the limit"
    assert "no heartbeat" not in str(causes(outcome))


def test_endless_computation_ends_its_process_and_job_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Like a hung CUDA call: the process's loop turns, and no step ends.

    The deadline is ten times the longest piece before, and never below the minimum.
    """
    config = load("quickstart", [*SMALL, "job.steps=4", "liveness.work_s=20"])
    cluster = SimCluster(RunSetup(config, seed=5, deadline_s=200.0))
    update, updates = SimTrainerWork.finish_step, 0

    @wraps(update)
    def hangs(work: SimTrainerWork) -> StepStats:
        nonlocal updates
        updates += 1
        if updates == 3:
            work._clock.spend(1e6)
        return update(work)

    monkeypatch.setattr(SimTrainerWork, "finish_step", hangs)
    outcome = cluster.run()
    assert (outcome.ended, outcome.reason) == ("done", "")
    assert outcome.virtual_s < PEACE_S + 20.0 + START_S
    assert audit(evidence(outcome)) == []
    cause = causes(outcome)["reserved-1/trainer"]
    assert "no progress in SimTrainerWork.finish_step for 20 s, expected " in cause
    assert cause.startswith("exit 7: ")


@pytest.mark.parametrize("kind", ["rollout", "reward"])
def test_others_wait_for_successor_when_a_kill_takes_long(kind: str) -> None:
    """The other processes are not restarted instead, and the job does not fail."""
    outcome = run("head", kind, 0.0, "liveness.hung_silences=20")
    assert (outcome.ended, outcome.reason) == ("done", "")
    assert audit(evidence(outcome)) == []
    assert list(causes(outcome)) == [f"head/{kind}"]


def test_actor_restart_in_head_agent_is_in_the_history() -> None:
    config = load("quickstart", [*SMALL, "job.steps=8"])
    cluster = SimCluster(RunSetup(config, seed=5, deadline_s=200.0))
    breaking = FaultInjector(cluster)
    hit: list[bool] = []
    breaking.at(FROZEN_AT_S, lambda: hit.append(breaking.crash_actor("head", "agent", "registry")))
    outcome = cluster.run()
    assert (outcome.ended, hit) == ("done", [True])
    restarts = [record for record in outcome.history if isinstance(record, Restart)]
    assert [(record.actor, record.cause) for record in restarts] == [
        ("head/registry", "crashed: RuntimeError: a defect that chaos planted")
    ]
