"""Faults at the moments that matter to a round: what is trained equals the undisturbed run.

Each fault follows a message or a committed event, and each test requires that it fell into its moment.
"""

import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import pytest
from sim_kills import steps_of, trained

from gleaner.actors.cluster.fleet import RESERVED
from gleaner.actors.names import CONTROLLER, MANAGER
from gleaner.actors.protocol.instances import Abort, Dispatch
from gleaner.actors.protocol.rollout import GroupFates, GroupFatesAre, StepEnded
from gleaner.actors.rollout.state.events import Dispatched, FrameLogged, GroupsDropped, GroupsKept
from gleaner.actors.rollout.state.group_policy import SURPLUS
from gleaner.actors.rollout.state.tickets import ABORTED
from gleaner.actors.training.draw_events import RoundDrawn, RoundSettled
from gleaner.actors.training.job_journal import StepFinished
from gleaner.configs.load import load
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.models.job_model import JobModel, Measured
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.shapes import model_shape
from gleaner.sim.models.training_cost import TrainingCost
from gleaner.sim.outcome import Outcome
from gleaner.sim.run_setup import HEAD, RunSetup
from gleaner.supervisor import Message
from gleaner.supervisor.journal.group_commit import Write
from gleaner.supervisor.message import decode_body

PROMPTS = 6
EXACT = [
    "job.steps=5",
    "job.exact=true",
    "task.heldout_problems=4",
    f"rollout.prompts={PROMPTS}",
    "rollout.samples=4",
    "engine.slots=8",
    "fleet.trace=",
    "rollout.max_new_tokens=1000",
    "rounds.mode=tail",
    "rounds.prompts_factor=1.5",
]
LENGTHS = LengthLaw(median=60.0, sigma=1.0, correlation=0.6)
"""So long that requests are aborted while they are decoded."""
FIRST_STEP = 4
"""By then instances are there."""
MODEL = JobModel(model_shape("quickstart"), LENGTHS)
SLOW_MODEL = JobModel(
    model_shape("quickstart"),
    LengthLaw(median=120.0, sigma=1.6, correlation=0.6),
    token_scale=2,
    measured=Measured(
        trainer=TrainingCost(
            token_s=0.0, pair_s=0.0, micro_batch_s=0.05, step_s=2.0, copy_s=0.0, publish_s=0.0
        )
    ),
)
"""The longest responses of a short round outlast a restart of the manager and its next sweep, and the weights
of the next step come later still: they end what an instance decodes as well."""


@dataclass
class Rounds:
    """What is seen of the rounds of a cluster, up to its newest event.

    Attributes:
        event: a message, or a committed event.
        where: "journal"; "in" or "out" of a process, or "local", for a message. host: of process or journal.
        to: the receiver of the message.
        kinds: of the rounds, by batch. kept: groups that count, by batch. at_rest: those of the manager's
            newest snapshot.
        requests: by instance and ticket. surplus: groups that the manager has dropped as such, by batch.
        aborted: batches of which an abort of a surplus group was sent since the last one was dropped.
        ended_early: requests of surplus groups that an abort has ended while their step was trained.
        trained, settled, finished: batches: the trainer has ended the step; its draws have returned; the step
            is on record.
    """

    event: Message | None = None
    where: str = ""
    host: str = ""
    to: str = ""
    kinds: dict[str, str] = field(default_factory=dict)
    kept: Counter[str] = field(default_factory=Counter)
    at_rest: Counter[str] = field(default_factory=Counter)
    requests: dict[tuple[str, int], str] = field(default_factory=dict)
    surplus: dict[str, set[int]] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    ended_early: set[str] = field(default_factory=set)
    trained: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)

    def committed(self, event: Message) -> None:
        """Take an event of the head's journals."""
        match event:
            case RoundDrawn():
                self.kinds[event.batch] = event.kind
            case Dispatched():
                for ticket, request in zip(event.tickets, event.requests, strict=True):
                    self.requests[event.instance, ticket] = request
            case GroupsKept():
                self.kept[event.batch] += len(event.groups)
            case GroupsDropped(why=why) if why == SURPLUS:
                self.surplus.setdefault(event.batch, set()).update(event.groups)
                self.aborted.discard(event.batch)
            case FrameLogged():
                self.ended_early.update(self._aborted_in(event))
            case RoundSettled():
                self.settled.add(event.batch)
            case StepFinished():
                self.finished.add(f"step-{event.step}")

    def surplus_batch(self, instance: str, abort: Abort) -> str:
        """The batch whose surplus groups this abort ends at an instance; "" for another abort."""
        for ticket in abort.tickets:
            request = self.requests.get((instance, ticket), "")  # "": its dispatch is in the disk's queue
            if request and (batch := self._surplus_of(request)):
                return batch
        return ""

    def _surplus_of(self, request: str) -> str:
        """The batch that has dropped the request's group as surplus; "" for none."""
        batch, group, _ = request.split("/")
        return batch if int(group) in self.surplus.get(batch, ()) else ""

    def _aborted_in(self, frame: FrameLogged) -> list[str]:
        """Requests of surplus groups whose end by an abort this frame reports before their step has ended."""
        tickets = struct.unpack(f"<{len(frame.flags)}I", frame.tickets)
        ended = [ticket for ticket, flags in zip(tickets, frame.flags, strict=True) if flags & ABORTED]
        requests = [self.requests[frame.instance, ticket] for ticket in ended]
        return [one for one in requests if (batch := self._surplus_of(one)) and batch not in self.trained]


Look = Callable[[Rounds], str]
"""The batch in whose moment the newest event is; "" in none."""


def watch(cluster: SimCluster, look: Callable[[Rounds], None]) -> Rounds:
    """Have `look` see each message of a process, and each committed event of controller and manager."""
    seen = Rounds()

    def message(one: ObservedMessage) -> None:
        seen.event, seen.where, seen.host = one.message, one.direction, one.process.host.name
        seen.to = one.to
        if isinstance(one.message, StepEnded):
            seen.trained.add(one.message.batch)
        look(seen)
        if isinstance(one.message, Abort) and one.direction == "out":
            seen.aborted.add(seen.surplus_batch(one.to, one.message))

    def commit(write: Write) -> None:
        if write.stream == MANAGER and write.is_snapshot:
            seen.at_rest = seen.kept.copy()
        if write.stream not in (MANAGER, CONTROLLER) or write.is_snapshot:
            return
        for row in write.rows:
            seen.event, seen.where, seen.host = decode_body(row.kind, row.body), "journal", HEAD
            seen.committed(seen.event)
            look(seen)

    cluster.watch(message)
    cluster.hosts[HEAD].disk.on_commit = commit
    return seen


def one_group_before_the_end(seen: Rounds) -> str:
    """Of the race of a short round."""
    event = seen.event
    if not isinstance(event, GroupsKept) or seen.kept[event.batch] != PROMPTS - 1:
        return ""
    return event.batch if seen.kinds[event.batch] == "short" else ""


def before_the_first_abort(seen: Rounds) -> str:
    """The race of a short round is over, so nothing is decided any more: the manager has dropped the last
    surplus groups, and is about to send the first abort of their requests."""
    if not isinstance(seen.event, Abort) or seen.where != "out":
        return ""
    batch = seen.surplus_batch(seen.to, seen.event)
    return batch if seen.kept[batch] == PROMPTS and batch not in seen.aborted | seen.trained else ""


def fates_asked(seen: Rounds) -> str:
    """The controller asks which groups counted."""
    return seen.event.batch if isinstance(seen.event, GroupFates) and seen.where == "out" else ""


def fates_received(seen: Rounds) -> str:
    """The manager has got that ask."""
    return seen.event.batch if isinstance(seen.event, GroupFates) and seen.where == "in" else ""


def fates_answered(seen: Rounds) -> str:
    """The controller has got the answer, and settles the round of the step that is trained."""
    return max(seen.trained) if isinstance(seen.event, GroupFatesAre) and seen.where == "in" else ""


def settled(seen: Rounds) -> str:
    """The deferred draws are in the queue, and the step is not on record."""
    return seen.event.batch if isinstance(seen.event, RoundSettled) else ""


def strike_in(cluster: SimCluster, look: Look, process: str) -> tuple[Rounds, list[str]]:
    """Kill a process of the head in the first such moment from `FIRST_STEP` on; returns what is seen, and the
    batch of the strike."""
    faults, struck = FaultInjector(cluster), list[str]()

    def strike(batch: str, kept: int) -> None:
        """kept: its groups that counted when the moment came."""
        in_time = batch not in seen.finished and seen.kept[batch] == kept
        if faults.kill_process(HEAD, process) and in_time:
            struck.append(batch)

    def seen_so_far(seen: Rounds) -> None:
        batch = "" if struck or waits else look(seen)
        if not batch or int(batch.rpartition("-")[2]) < FIRST_STEP:
            return
        if seen.where == "journal":  # the disk is in the middle of its commit
            waits.append(cluster.loop.call_later(0.0, strike, batch, seen.kept[batch]))
        else:
            strike(batch, seen.kept[batch])

    waits = list[object]()
    seen = watch(cluster, seen_so_far)
    return seen, struck


def setup(model: JobModel = MODEL, *settings: str) -> RunSetup:
    return RunSetup(load("quickstart", [*EXACT, *settings]), seed=0, job_model=model)


@cache
def calm(model: JobModel = MODEL) -> Outcome:
    """The undisturbed run."""
    return ended(SimCluster(setup(model)))


def ended(cluster: SimCluster) -> Outcome:
    outcome = cluster.run()
    assert (outcome.ended, outcome.findings) == ("done", []), outcome.reason
    assert audit(evidence(outcome)) == []
    return outcome


def equals_calm_run(outcome: Outcome, model: JobModel = MODEL) -> None:
    roots = {number: step.root for number, step in steps_of(outcome).items()}
    assert roots == {number: step.root for number, step in steps_of(calm(model)).items()}
    assert trained(outcome) == trained(calm(model))


@pytest.mark.parametrize("process", [pytest.param("rollout", marks=pytest.mark.long), "agent"])
def test_race_is_the_same_when_manager_or_controller_dies_one_group_before_its_end(process: str) -> None:
    cluster = SimCluster(setup(MODEL, "limits.journal_events=30"))  # a restart begins in the middle of a race
    at_rest = dict[str, int]()

    def noted(seen: Rounds) -> str:
        if batch := one_group_before_the_end(seen):
            at_rest[batch] = seen.at_rest[batch]
        return batch

    seen, struck = strike_in(cluster, noted, process)
    equals_calm_run(ended(cluster))
    assert len(struck) == 1
    assert at_rest[struck[0]] > 0
    assert seen.kept[struck[0]] == PROMPTS


@pytest.mark.long
def test_surplus_is_aborted_when_the_manager_dies_between_decision_and_aborts() -> None:
    cluster = SimCluster(setup(SLOW_MODEL))
    before = set[str]()

    def noted(seen: Rounds) -> str:
        before.update(seen.ended_early)
        return before_the_first_abort(seen)

    seen, struck = strike_in(cluster, noted, "rollout")
    equals_calm_run(ended(cluster), SLOW_MODEL)
    assert len(struck) == 1
    assert {request.partition("/")[0] for request in seen.ended_early - before} >= set(struck)


@pytest.mark.parametrize(
    ("look", "process"),
    [
        pytest.param(fates_asked, "agent", marks=pytest.mark.long),
        pytest.param(fates_received, "rollout", marks=pytest.mark.long),
        (fates_answered, "agent"),
        pytest.param(settled, "agent", marks=pytest.mark.long),
    ],
)
def test_draws_return_once_when_a_process_dies_behind_the_end_of_their_step(look: Look, process: str) -> None:
    cluster = SimCluster(setup())
    then = dict[str, tuple[bool, bool]]()  # by batch: whether it was trained, and its draws had returned

    def noted(seen: Rounds) -> str:
        batch = look(seen)
        then.setdefault(batch, (batch in seen.trained, batch in seen.settled))
        return batch

    seen, struck = strike_in(cluster, noted, process)
    equals_calm_run(ended(cluster))
    assert len(struck) == 1
    assert then[struck[0]] == (True, look is settled)
    assert struck[0] in seen.settled & seen.finished


def test_long_round_goes_on_at_the_reserved_host_when_all_instances_are_gone() -> None:
    cluster = SimCluster(setup())
    faults, lost, struck = FaultInjector(cluster), list[str](), list[str]()
    served = Counter[str]()  # requests that got to instances of the struck round, by host, after the strike

    def look(seen: Rounds) -> None:
        if not isinstance(seen.event, Dispatch) or seen.where != "in" or not seen.kinds:
            return
        batch = list(seen.kinds)[-1]
        if struck and batch == struck[0]:
            served[seen.host] += len(seen.event.work)
        elif not struck and seen.kinds[batch] == "long" and seen.host in faults.hosts("preemptible"):
            struck.append(batch)
            lost.extend(name for name in faults.hosts("preemptible") if faults.kill_host(name))

    seen = watch(cluster, look)
    equals_calm_run(ended(cluster))
    assert len(lost) == 2
    assert served.keys() == {RESERVED}
    assert seen.kinds[struck[0]] == "long"
