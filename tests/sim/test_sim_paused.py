"""Processes that pause for a while and continue.

The pause of one process does not count as the silence of another.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from gleaner.actors.protocol.cluster import NodeSeen
from gleaner.actors.rollout.state.events import InstanceGone
from gleaner.configs.load import load
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.hosts import SIGCONT, SIGSTOP, SimProcess
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.run_setup import CLIENT, RunSetup
from gleaner.supervisor.journal.port import Journal
from gleaner.supervisor.message import Message

SMALL = [
    "job.steps=12",
    "task.heldout_problems=4",
    "rollout.prompts=6",
    "rollout.samples=4",
    "engine.slots=4",
    "fleet.trace=",
    "fleet.n_prem_max=3",
]
PAUSE_S = 20.0


@dataclass
class Result:
    """The job's outcome, and the hosts and instances that its head and its manager gave up."""

    ended: str
    findings: int
    frozen: int
    hosts: list[str] = field(default_factory=list)
    instances: list[str] = field(default_factory=list)


def paused(
    monkeypatch: pytest.MonkeyPatch, stops: Callable[[SimProcess], bool], at_s: float = 6.0, *more: str
) -> Result:
    """A job in which the processes that `stops` selects pause together for a while."""
    cluster = SimCluster(RunSetup(load("quickstart", [*SMALL, *more]), seed=1, deadline_s=300.0))
    hosts: list[str] = []
    instances: list[str] = []
    stopped: list[SimProcess] = []
    append = Journal.append_soon

    def watched(journal: Journal, *events: Message, flush: bool = False) -> Awaitable[int]:
        gone = [event for event in events if isinstance(event, InstanceGone)]
        instances.extend(event.instance for event in gone if event.cause != "stopped")
        return append(journal, *events, flush=flush)

    def record(seen: ObservedMessage) -> None:
        if isinstance(seen.message, NodeSeen) and seen.message.event == "killed":
            hosts.append(seen.message.node)

    def stop() -> None:
        for host in cluster.hosts.values():
            if host.name != CLIENT:
                stopped.extend(process for process in host.processes if stops(process))
        for process in stopped:
            process.send_signal(SIGSTOP)

    def go_on() -> None:
        for process in stopped:
            process.send_signal(SIGCONT)

    monkeypatch.setattr(Journal, "append_soon", watched)
    cluster.watch(record)
    breaking = FaultInjector(cluster)
    breaking.at(at_s, stop)
    breaking.at(at_s + PAUSE_S, go_on)
    outcome = cluster.run()
    return Result(outcome.ended, len(outcome.findings), len(stopped), hosts, instances)


@pytest.mark.parametrize("at_s", [6.0, 7.1])
def test_frozen_head_declares_no_host_dead(monkeypatch: pytest.MonkeyPatch, at_s: float) -> None:
    result = paused(monkeypatch, lambda process: process.name == "head/agent", at_s)
    assert result == Result("done", 0, 1)


def test_wholly_frozen_host_declares_no_process_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = paused(monkeypatch, lambda process: process.host.name == "head")
    assert result == Result("done", 0, 3)


def test_wholly_frozen_cluster_continues_with_every_instance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = paused(monkeypatch, lambda process: True)
    assert result.frozen > 10
    assert (result.ended, result.findings, result.hosts, result.instances) == ("done", 0, [], [])


@pytest.mark.parametrize("at_s", [4.5, 7.0])
def test_manager_frozen_with_its_engines_gives_none_up(monkeypatch: pytest.MonkeyPatch, at_s: float) -> None:
    kinds = ("rollout", "trainer", "engine")
    result = paused(monkeypatch, lambda process: process.kind in kinds, at_s, "rollout.deadline_s=4.0")
    assert result == Result("done", 0, 5)
