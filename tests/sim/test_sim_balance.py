"""Load balancing in whole simulated jobs, compared with and without it.

Both runs have the same job and seed; balancing shortens the step.
"""

from dataclasses import replace

import msgspec

from gleaner.actors.training.records import Sample, Step
from gleaner.configs.load import load
from gleaner.configs.trace import Event, Trace, TraceEvent
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.commands.simulate import PRESETS
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.rlctl.what_if_setup import setting_of
from gleaner.sim.cluster import SimCluster
from gleaner.sim.outcome import Outcome
from gleaner.sim.run_setup import RunSetup

SETTINGS = [
    "job.steps=2",
    "rollout.prompts=16",
    "rollout.max_new_tokens=4096",
    "task.heldout_problems=1",
    "fleet.n_prem_max=2",
    "seeding.initial_s=0",
    "seeding.max_s=0",
]
JOINS_S = 130.0
"""In the middle of the second step, when all requests are being decoded elsewhere."""


def setting(continuous_lb: str) -> RunSetup:
    """Qwen3-14B on H100; a second preemptible host joins late."""
    config = load("rlboost-14b", [*SETTINGS, f"rollout.continuous_lb={continuous_lb}"])
    words = replace(PRESETS["rlboost-14b"], lengths="3000,0.6,0.6", boot_s=1.0)
    made = setting_of(config, words)
    events = (TraceEvent(0.0, Event.ADD, "spot-1"), TraceEvent(JOINS_S, Event.ADD, "spot-2"))
    fleet = msgspec.structs.replace(made.config.fleet, trace="late")
    return replace(
        made, config=msgspec.structs.replace(made.config, fleet=fleet), trace=Trace("late", events)
    )


def second_step(outcome: Outcome) -> Step:
    [_, step] = [record for record in outcome.history if isinstance(record, Step)]
    return step


def moves(outcome: Outcome) -> int:
    return max(record.moves for record in outcome.history if isinstance(record, Sample))


def test_late_instance_takes_its_share_and_shortens_step() -> None:
    without, balanced = (SimCluster(setting(word)).run() for word in ("false", "true"))
    for outcome in (without, balanced):
        assert (outcome.ended, outcome.findings) == ("done", [])
        assert audit(evidence(outcome)) == []
        assert second_step(outcome).t_s - second_step(outcome).step_s < JOINS_S < second_step(outcome).t_s
    assert moves(without) == 0
    assert moves(balanced) >= 10
    assert second_step(balanced).step_s < 0.93 * second_step(without).step_s
    again = SimCluster(setting("true")).run()
    assert (again.trace_hash, moves(again)) == (balanced.trace_hash, moves(balanced))
