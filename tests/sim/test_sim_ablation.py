"""Ablation switches in a whole simulated cluster.

The job ends well and differs as it should.
"""

from dataclasses import dataclass, field

from gleaner.actors.protocol.instances import Registered, Serving
from gleaner.actors.training.records import Step
from gleaner.configs.load import load
from gleaner.configs.trace import Event, Trace, TraceEvent
from gleaner.sim import message_hooks
from gleaner.sim.cluster import SimCluster
from gleaner.sim.outcome import Outcome
from gleaner.sim.run_setup import RunSetup

SMALL = ["job.steps=1", "task.heldout_problems=4", "rollout.prompts=4", "rollout.samples=4"]


LATE = Trace("late", (TraceEvent(0.0, Event.ADD, "late"),))
"""A requested host joins within the step at whose start it was requested."""


@dataclass
class Seen:
    """The result of a job: its outcome, the replies to registering instances, and the serving instances."""

    outcome: Outcome
    answers: list[Registered] = field(default_factory=list)
    served: set[str] = field(default_factory=set)


def run(*sets: str, trace: Trace | None = None) -> Seen:
    """Run a job to its end."""
    cluster = SimCluster(RunSetup(load("quickstart", [*SMALL, *sets]), seed=3, trace=trace))
    answers: list[Registered] = []
    served: set[str] = set()

    def look(fact: message_hooks.ObservedMessage) -> None:
        if fact.direction == "in" and isinstance(fact.message, Registered):
            answers.append(fact.message)
        if fact.direction == "in" and isinstance(fact.message, Serving):
            served.add(fact.message.instance)

    cluster.watch(look)
    outcome = cluster.run()
    assert outcome.ended == "done"
    return Seen(outcome, answers, served)


def wished_for(seen: Seen) -> int:
    """The number of preemptible hosts planned for the step after the last one."""
    return [record.n_prem for record in seen.outcome.history if isinstance(record, Step)][-1]


def test_every_instance_is_requested_when_algorithm_1_is_off() -> None:
    usual = run("fleet.n_prem_max=12", "fleet.trace=")
    every = run("fleet.n_prem_max=12", "fleet.trace=", "ablation.every_instance=true")
    assert wished_for(usual) < wished_for(every) == 12


def test_synchronous_weights_arrive_only_with_the_next_step() -> None:
    late = ("fleet.trace=late", "job.steps=6", "seeding.min_s=4", "seeding.initial_s=4")
    pulled = run(*late, trace=LATE)
    pushed = run(*late, "ablation.synchronous_weights=true", trace=LATE)
    assert any(answer.weights is not None for answer in pulled.answers)
    assert pushed.answers
    assert all(answer.weights is None for answer in pushed.answers)
    assert "late/engine" in pulled.served & pushed.served
