"""Hosts that are processes of one machine.

The loss of such a host is noticed at once, without a silence timeout.
"""

import pytest

from gleaner.actors.training.records import Node
from gleaner.configs.load import load
from gleaner.configs.trace import Event, Trace, TraceEvent
from gleaner.sim.cluster import SimCluster
from gleaner.sim.run_setup import RunSetup

GONE_S = 2.75  # after the start of the first step: the instances decode responses of the second one
SETS = ["job.steps=3", "task.heldout_problems=4", "rollout.max_new_tokens=128", "engine.slots=4"]


def ended_s(*, one_machine: bool) -> float:
    """When a job ends whose instances are taken away in its second step."""
    events = [TraceEvent(0.0, Event.ADD, name) for name in ("a", "b")]
    events += [TraceEvent(GONE_S, Event.REMOVE, name) for name in ("a", "b")]
    trace = Trace("gone", tuple(events))
    outcome = SimCluster(
        RunSetup(load("quickstart", SETS), seed=3, trace=trace, one_machine=one_machine)
    ).run()
    assert outcome.ended == "done"
    killed = [record for record in outcome.history if isinstance(record, Node) and record.event == "killed"]
    assert len(killed) == 2
    return outcome.virtual_s


@pytest.mark.long
def test_instance_on_the_same_machine_is_missed_earlier() -> None:
    assert ended_s(one_machine=True) < ended_s(one_machine=False) - 1.5
