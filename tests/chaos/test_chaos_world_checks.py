"""The checks of capacity, plans, money and time, on hand-written histories."""

from typing import Literal

import msgspec
import pytest

from gleaner.actors.cluster.fleet import RESERVED
from gleaner.actors.cluster.membership_journal import MembersAre
from gleaner.actors.cluster.scheduler import ClusterState
from gleaner.actors.cluster.seeding import KindState, SeedingState
from gleaner.actors.cluster.step_statistics import StepStatistics
from gleaner.actors.cluster.width_planner import WidthState
from gleaner.actors.names import BALANCER, CONTROLLER, MANAGER, SCHEDULER, TRAINER
from gleaner.actors.protocol.balancer import ForgetAll, InstanceDown, InstanceUp
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.cluster import CloudNotice, JobSpec, NodeWork, Plan, PreemptionNotice, SaveState
from gleaner.actors.protocol.instances import (
    NewWork,
    Registered,
    RegisterInstance,
    Serving,
    Withdraw,
    Withdrawn,
)
from gleaner.actors.protocol.rollout import Groups, TakeGroups, Weights
from gleaner.actors.protocol.training import CloseSeeding, OpenSeeding, TrainStep
from gleaner.actors.rollout.journal.journaled_state import BatchWeights
from gleaner.actors.rollout.state.events import (
    Dispatched,
    FrameLogged,
    GroupsDropped,
    InstanceGone,
    InstanceJoined,
    RequestsDue,
    Scored,
    VersionPublished,
)
from gleaner.actors.training.job_journal import JobOver
from gleaner.chaos.invariants.catalogue import jury_of
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed
from gleaner.chaos.invariants.stream_facts import CreditGranted, Fate, FrameArrived
from gleaner.chaos.invariants.world_facts import (
    ExpiredSeen,
    HostLook,
    HostRecorded,
    HostRented,
    HostReturned,
    HostsLeft,
    Paid,
    WorldSeen,
)
from gleaner.configs.schema import Config
from gleaner.supervisor import Address, Message
from gleaner.supervisor.system_messages import Failure
from gleaner.transport.token_frame import Flag

ONE, TWO = "spot-1/engine", "spot-2/engine"
ROOT = b"r1"
JOB = JobSpec(run_id="job", run_dir="/r", model_dir="/m", config="")
LONG_S = 300.0
CONFIG = msgspec.convert(
    {"rollout": {"request_deadline_s": 6.0}, "fleet": {"n_prem_max": 3}}, Config, strict=False
)


def judged(*facts: Fact, check: str, config: Config = CONFIG) -> list[str]:
    """Violations of a check, of facts in the order of their time."""
    jury = jury_of(None, config=config)
    for fact in sorted(facts, key=lambda fact: fact.at_s):
        jury.see(fact)
    return [found.text for found in jury.found if found.check == check]


def commit(at_s: float, *messages: Message, stream: str = MANAGER) -> Committed:
    return Committed(at_s, "head", stream, 1, messages)


def passed(
    at_s: float,
    message: Message,
    *,
    source: str = MANAGER,
    to: str = "x",
    way: Literal["in", "out", "local"] = "out",
    mode: str = "ask",
    process: str = "head/rollout",
) -> MessagePassed:
    return MessagePassed(at_s, process, way, mode, source, to, message)


def look(name: str, role: str = "preemptible", well_s: float = LONG_S, **changes: object) -> HostLook:
    """A host that has been well for so long."""
    fields: dict[str, object] = {
        "name": name, "role": role, "agent": 1, "agent_s": well_s, "engine_s": well_s, "calm_s": well_s,
        "steady_s": well_s,
    }  # fmt: skip
    return msgspec.convert(fields | changes, HostLook)


def world(at_s: float, *others: HostLook, recorded: tuple[str, ...] = (), rented: int = 3) -> WorldSeen:
    """A look at the cluster, with a head and a reserved host that are well unless they are among `others`."""
    hosts = [look("head", "head"), look(RESERVED, "reserved"), *others]
    return WorldSeen(
        at_s,
        {host.name: host for host in hosts},
        {f"spot-{number}": 0.0 for number in range(rented)},
        frozenset((RESERVED, *recorded)),
        began=True,
    )


def looks(end_s: float, *others: HostLook, begin_s: float = 0.0, **changes: object) -> list[Fact]:
    """A look each second."""
    seconds = range(1, round(end_s - begin_s) + 1)
    return [world(begin_s + second, *others, **changes) for second in seconds]  # type: ignore[arg-type]


def registered(instance: str, *, version: int | None = 1) -> list[Fact]:
    """What its worker sends: a registration, and which weights it serves."""
    worker = address(instance, incarnation=5)
    ask = RegisterInstance(instance=instance, worker=worker, kind="preemptible", slots=8, received=0)
    facts: list[Fact] = [passed(0.0, ask, source=instance, to=MANAGER, process=instance)]
    if version is not None:
        serving = Serving(instance=instance, incarnation=5, version=version, root=ROOT)
        facts.append(passed(0.1, serving, source=instance, to=MANAGER, process=instance))
    return facts


def opened(requests: int, at_s: float = 0.2) -> Committed:
    """A batch of so many requests, and two instances."""
    prompt = Prompt(split="train", index=0, tokens=(1,), seeds=tuple(range(requests)))
    return commit(
        at_s,
        VersionPublished(version=1, root=ROOT, sources=()),
        BatchSubmitted(batch="step-2", version=1, prompts=(prompt,), max_new_tokens=8),
        BatchWeights(batch="step-2", weights=Weights(version=1, root=ROOT, sources=())),
        InstanceJoined(instance=ONE, incarnation=5),
        InstanceJoined(instance=TWO, incarnation=5),
    )


def sent(at_s: float, count: int, *, to: str = ONE, first: int = 0) -> Committed:
    names = tuple(f"step-2/0/{number}" for number in range(first, first + count))
    tickets = tuple(range(first + 1, first + count + 1))
    return commit(at_s, Dispatched(instance=to, incarnation=5, version=1, tickets=tickets, requests=names))


def decoding(at_s: float, count: int, *, flags: int = 0, seq: int = 1) -> Committed:
    """A row of each of the first requests of ONE."""
    tickets = b"".join(ticket.to_bytes(4, "little") for ticket in range(1, count + 1))
    zeros = bytes(4 * count)
    frame = FrameLogged(
        instance=ONE, incarnation=5, seq=seq, tickets=tickets, tokens=zeros, logprobs=zeros,
        flags=bytes([flags] * count),
    )  # fmt: skip
    return commit(at_s, frame)


def address(name: str, incarnation: int = 1) -> Address:
    return Address(name=name, endpoint="tcp://1:1", public_key="", incarnation=incarnation)


# -- capacity --


def test_well_instance_beside_a_queue_is_found() -> None:
    story = [*registered(ONE), *registered(TWO), opened(9)]
    (first, second) = judged(*story, *looks(6, look("spot-1"), look("spot-2")), check="no capacity forgotten")
    assert first.startswith(f"{ONE} has had nothing to do for 4.0 s, serves version 1, and 9 requests wait")
    assert second.startswith(TWO)


def test_well_instance_that_a_dispatch_passed_over_is_found() -> None:
    hosts = look("spot-1"), look("spot-2")
    story = [*registered(ONE), *registered(TWO), *looks(9, *hosts), opened(9, 9.5), sent(10.0, 9)]
    (found,) = judged(*story, world(10.5, *hosts), check="no capacity forgotten")
    assert found == (
        f"{TWO} has nothing to do and serves version 1, for 10.4 s: {ONE} got 9 requests, and it got none"
    )
    assert judged(*story, sent(10.1, 1, to=TWO), world(10.5, *hosts), check="no capacity forgotten") == []
    published = msgspec.structs.replace(
        CONFIG, rollout=msgspec.structs.replace(CONFIG.rollout, balancing="published")
    )
    assert judged(*story, world(10.5, *hosts), check="no capacity forgotten", config=published) == []


def test_instance_that_keeps_old_weights_is_found() -> None:
    story = [*registered(ONE, version=0), opened(0)]
    (found,) = judged(*story, *looks(20, look("spot-1")), check="no capacity forgotten")
    assert found.startswith(f"{ONE} serves version 0, 12.8 s after 1 was published")


@pytest.mark.parametrize(
    "excuse",
    [
        look("spot-1", well_s=3.0),  # a fault or a start shortly before
        look("spot-1", noticed=True, calm_s=0.0),  # it goes
    ],
)
def test_instance_with_a_reason_against_it_may_idle(excuse: HostLook) -> None:
    story = [*registered(ONE), opened(9), *looks(20, excuse)]
    assert judged(*story, check="no capacity forgotten") == []


# -- membership --


def members(at_s: float, *names: str, life: int = 1) -> Committed:
    agents = {
        name: Address(name=f"{name}/agent", endpoint="e", public_key="", incarnation=life) for name in names
    }
    roles = {name: "reserved" if name == RESERVED else "preemptible" for name in names}
    return commit(at_s, MembersAre(boot=1, roles=roles, agents=agents), stream=f"{SCHEDULER}/members")


def test_members_and_history_that_are_the_living_hosts_pass() -> None:
    story = [members(0.0, RESERVED, "spot-1"), *looks(60, look("spot-1"), recorded=("spot-1",))]
    assert judged(*story, check="membership") == []


def test_living_host_that_is_no_member_is_found() -> None:
    story = [members(0.0, RESERVED), *looks(60, look("spot-1"), recorded=("spot-1",))]
    assert judged(*story, check="membership") == [
        "spot-1 lives, and the scheduler has had it not as up for 7.0 s"
    ]


def test_work_of_a_host_that_is_no_member_is_found_unless_it_is_repeated() -> None:
    def work(at_s: float) -> MessagePassed:
        return passed(at_s, NodeWork(job=JOB), source=SCHEDULER, to="spot-1/agent", mode="reply")

    right = work(1.1)
    story = [members(1.0, RESERVED, "spot-1"), right, members(2.0, RESERVED)]
    assert judged(*story, msgspec.structs.replace(right, at_s=2.1), check="answers") == []
    assert judged(*story, work(2.1), check="answers") == [
        "spot-1 was given work and is no member in the journal"
    ]


def test_host_that_the_history_has_after_its_end_is_found() -> None:
    story = [members(0.0, RESERVED), *looks(60, recorded=("spot-1",))]
    assert judged(*story, check="membership") == [
        "spot-1 is gone, and the history has had it as up for 17.0 s"
    ]


def test_host_that_returned_between_two_looks_counts_anew() -> None:
    begins = members(0.0, RESERVED, "spot-1")
    absent = [world(float(second), recorded=("spot-1",)) for second in range(1, 13)]
    between = [members(5.2, RESERVED), members(5.8, RESERVED, "spot-1")]
    assert judged(begins, *between, *absent, check="membership") == []
    events = [HostRecorded(8.5, "spot-1", "preemptible", event) for event in ("killed", "joined")]
    longer = [world(float(second), recorded=("spot-1",)) for second in range(1, 24)]
    assert judged(members(0.0, RESERVED), *events, *longer, check="membership") == []


def test_host_that_lived_shortly_between_two_looks_counts_anew() -> None:
    absent = [world(float(second), recorded=("spot-1",)) for second in range(1, 12)]
    story = [members(0.0, RESERVED, "spot-1"), *absent]
    assert judged(*story, check="membership") != []
    assert judged(*story, members(5.5, RESERVED, "spot-1", life=2), check="membership") == []


def test_recorded_end_of_a_host_that_lives_on_is_found() -> None:
    ended = HostRecorded(5.5, "spot-1", "preemptible", "killed")
    story = [members(0.0, RESERVED, "spot-1"), *looks(5, look("spot-1"), recorded=("spot-1",))]
    (found,) = judged(*story, ended, check="membership")
    assert found.startswith("the history has spot-1 as killed; its node agent has run for 300.0 s")


def test_end_of_an_earlier_life_is_recorded_once() -> None:
    young = look("spot-1", agent_s=2.0, calm_s=2.0)
    ends = [HostRecorded(5.5 + 0.1 * number, "spot-1", "preemptible", "killed") for number in range(2)]
    assert judged(*looks(5, young), ends[0], check="membership") == []
    assert len(judged(*looks(5, young), *ends, check="membership")) == 1


# -- instances --


def test_request_that_never_begins_beside_free_slots_is_found() -> None:
    story = [*registered(ONE), opened(2), sent(1.0, 2), decoding(2.0, 1)]
    (found,) = judged(*story, *looks(12, look("spot-1")), check="instances")
    assert found == f"step-2/0/1 was sent to {ONE} as 2, 8.0 s ago: it has no row, and 7 slots there are free"
    full = [*registered(ONE), opened(9), sent(1.0, 9), decoding(2.0, 8)]
    assert judged(*full, *looks(12, look("spot-1")), check="instances") == []


def test_request_behind_full_slots_waits_from_the_time_they_are_free() -> None:
    full = [*registered(ONE), opened(9), sent(1.0, 9), decoding(2.0, 8), *looks(12, look("spot-1"))]
    full += [decoding(12.5, 8, flags=int(Flag.FINISHED), seq=2)]
    short, long = (looks(end_s, look("spot-1"), begin_s=12.0) for end_s in (18, 30))
    assert judged(*full, *short, check="instances") == []
    assert len(judged(*full, *long, check="instances")) == 1


def test_living_instance_that_is_given_up_is_found() -> None:
    down = InstanceDown(instance=ONE, incarnation=5)
    up = InstanceUp(instance=ONE, incarnation=5, kind="preemptible", slots=8, pending=0, executing=0)
    gone = passed(3.5, down, to=BALANCER, way="local")
    (found,) = judged(*registered(ONE), gone, *looks(5, look("spot-1")), check="instances")
    assert found == f"{ONE}#5 was given up 0.5 s ago, and nothing was against it for 5 s before"
    back = passed(3.5, up, to=BALANCER, way="local")
    assert judged(*registered(ONE), gone, back, *looks(5, look("spot-1")), check="instances") == []
    over = commit(3.4, JobOver(), stream=CONTROLLER)
    assert judged(*registered(ONE), over, gone, *looks(5, look("spot-1")), check="instances") == []


# -- drains and deadlines --


def withdrawn(at_s: float = 1.0, times: int = 1, grace_s: float = 1.0, leaves: bool = False) -> list[Fact]:
    """A withdrawal, received so many times."""
    ask = Withdraw(instance=ONE, grace_s=grace_s, leaves=leaves)
    sent = passed(at_s, ask, source="spot-1/agent", to=MANAGER)
    received = passed(at_s, ask, source="spot-1/agent", to=MANAGER, way="in")
    return [sent, *(msgspec.structs.replace(received, at_s=at_s + 0.1 * time) for time in range(times))]


def drained(at_s: float) -> MessagePassed:
    return passed(at_s, Withdrawn(handed_over=0), to="spot-1/agent", mode="reply")


def test_withdrawal_of_an_empty_instance_without_answer_is_found() -> None:
    assert judged(*withdrawn(), *looks(9, look("spot-1")), check="drains end") == [
        f"{ONE} holds nothing for 2.0 s, and its withdrawal has no answer"
    ]
    repeated = [*withdrawn(times=3), drained(1.5), *looks(9, look("spot-1"))]
    assert judged(*repeated, check="drains end") == [], "an ask that is sent again has one answer"
    again = [*withdrawn(), *withdrawn(1.2), drained(1.5), *looks(9, look("spot-1"))]
    assert judged(*again, check="drains end") == []


def test_answer_to_a_withdrawal_that_is_not_over_is_found() -> None:
    story = [opened(1), sent(0.5, 1), *withdrawn()]
    found = [f"{ONE} holds 1 requests, and its withdrawal is answered"]
    assert judged(*story, drained(1.5), check="drains end") == found
    newer = [*story, *withdrawn(1.4, grace_s=0.6)]
    assert judged(*newer, drained(1.5), check="drains end") == [], "the earlier ask is answered"
    assert judged(*newer, drained(1.5), drained(1.6), check="drains end") == found
    equal = [*story, *withdrawn(1.2), *withdrawn(1.4, grace_s=0.6)]
    assert judged(*equal, drained(1.5), drained(1.5), check="drains end") == [], "two equal asks, two answers"


def test_answer_from_memory_to_a_repeated_withdrawal_passes() -> None:
    answer = drained(1.1)
    story = [*withdrawn(), answer, opened(1, at_s=1.2), sent(1.3, 1), *withdrawn(1.4)]
    repeated = msgspec.structs.replace(answer, at_s=1.5)
    assert judged(*story, repeated, check="drains end") == []
    assert judged(*story, drained(1.5), check="drains end") == [
        f"{ONE} holds 1 requests, and its withdrawal is answered"
    ]


@pytest.mark.parametrize("allowed", [True, False], ids=["stays", "may go"])
def test_answer_to_a_withdrawal_that_was_called_off_is_not_that_of_the_next(allowed: bool) -> None:
    called_off = passed(
        1.2, NewWork(instance=ONE, allowed=allowed), source="spot-1/agent", to=MANAGER, way="in"
    )
    story = [opened(1), sent(0.5, 1), *withdrawn(leaves=True), called_off, *withdrawn(1.3, grace_s=0.6)]
    assert judged(*story, drained(1.5), check="drains end") == []
    assert len(judged(*story, drained(1.5), drained(1.6), check="drains end")) == 1


def test_refused_withdrawal_needs_no_answer() -> None:
    refusal = passed(1.1, Failure(code="Refused", text="try again"), to="spot-1/agent", mode="error")
    assert judged(*withdrawn(), refusal, *looks(9, look("spot-1")), check="drains end") == []


def test_instance_that_holds_requests_beyond_its_grace_is_found() -> None:
    story = [opened(1), sent(0.5, 1), decoding(0.6, 1), *withdrawn()]
    (found,) = judged(*story, *looks(20, look("spot-1")), check="drains end")
    assert found == f"{ONE} holds 1 requests, 4.0 s after the grace of its drain"


def test_host_that_goes_with_requests_after_its_notice_is_found() -> None:
    notice = passed(
        1.0, PreemptionNotice(deadline_s=30.0), way="in", to="spot-1/agent", process="spot-1/agent"
    )
    story = [opened(1), sent(0.5, 1), notice, *looks(30, look("spot-1"))]
    assert judged(*story, HostReturned(31.0, "spot-1"), check="drains end") == [
        "spot-1 goes with 1 requests, 30 s after its notice"
    ]


def test_request_beyond_its_deadline_is_found() -> None:
    story = [opened(1), sent(1.0, 1), decoding(2.0, 1)]
    assert judged(*story, *looks(12), check="request age") == [
        "step-2/0/0 was first dispatched 9.0 s ago and goes on; its deadline is 6 s"
    ]
    due = commit(7.5, RequestsDue(requests=("step-2/0/0",)))
    assert judged(*story, due, *looks(12), check="request age") == []


# -- time --


def test_process_that_is_not_started_again_is_found() -> None:
    gone = [look("spot-1", missing={"engine": float(second)}) for second in range(20)]
    story = [world(float(second), host) for second, host in enumerate(gone)]
    (found,) = judged(*story, check="recovery time")
    assert found == "spot-1 has no engine for 11.0 s; its node agent runs"


def test_host_that_an_ill_head_gives_no_job_is_no_violation() -> None:
    new = [look("spot-1", agent_s=float(s), missing={"engine": float(s)}) for s in range(20)]
    well = [world(float(second), host) for second, host in enumerate(new)]
    assert judged(*well, check="recovery time") == ["spot-1 has no engine for 11.0 s; its node agent runs"]
    ill = [world(float(s), look("head", "head", steady_s=0.0), host) for s, host in enumerate(new)]
    assert judged(*ill, check="recovery time") == []


def test_job_that_stands_still_while_all_is_well_is_found() -> None:
    (found,) = judged(*looks(40), check="recovery time")
    assert found.startswith("no token, verdict or step for 31.0 s")


def test_wait_that_expires_in_a_calm_is_found() -> None:
    calm = world(100.0, look("spot-1", well_s=50.0))
    late = ExpiredSeen(100.0, "head/agent", "training/controller", "an answer", MANAGER, since_s=30.0)
    early = msgspec.structs.replace(late, since_s=49.0)
    (found,) = judged(calm, late, check="calm waits")
    assert found.endswith("all hosts were well for 20.0 s before")
    assert judged(calm, early, check="calm waits") == [], "it began when the last fault was being noticed"
    sick = msgspec.structs.replace(calm, verifiers_s=20.0)
    assert judged(sick, late, check="calm waits") == [], "a verifier was at fault meanwhile"


def test_finished_request_without_verdict_is_found_when_all_is_well() -> None:
    story = [*registered(ONE), opened(2), sent(0.3, 2), decoding(0.5, 1, flags=Flag.FINISHED)]
    hosts = look("rewards-1", "reward"), look("spot-1")
    (found,) = judged(*story, *looks(60, *hosts), check="verdict age")
    assert found.startswith("step-2/0/0 has had no verdict for 46.0 s; all hosts that score were well for ")
    verdict = commit(30.0, Scored(request="step-2/0/0", score=1.0, status="ok"))
    assert judged(*story, verdict, *looks(60, *hosts), check="verdict age") == []
    ill = look("rewards-1", "reward", calm_s=20.0)
    assert judged(*story, *looks(60, ill), check="verdict age") == [], "a reward host may have had it"
    sick = [msgspec.structs.replace(fact, verifiers_s=20.0) for fact in looks(60, *hosts)]
    assert judged(*story, *sick, check="verdict age") == [], "a verifier was at fault meanwhile"


# -- plans and money --

LEARNT = StepStatistics(lengths=[[[3, 4]]])
PLANNED = SeedingState(t_seed_s=2.0, n_prem=2, memory={2: 2.0}, learnt=LEARNT)


def planned(at_s: float, step: int, seeding: SeedingState | None) -> Committed:
    state = ClusterState(job=JOB, state="running", planned_step=step, seeding=seeding)
    return commit(at_s, state, stream=SCHEDULER)


def answered(at_s: float, t_seed_s: float, n_prem: int) -> MessagePassed:
    return passed(at_s, Plan(t_seed_s=t_seed_s, n_prem=n_prem), source=SCHEDULER, mode="reply")


def test_plan_that_goes_on_from_the_one_before_passes() -> None:
    more = StepStatistics(lengths=[[[3, 4]], [[5, 6]]])
    ahead = SeedingState(t_seed_s=3.0, n_prem=1, memory={2: 2.5}, learnt=more)
    story = [planned(1.0, 2, PLANNED), answered(1.1, 2.0, 2), planned(2.0, 3, ahead), answered(2.1, 3.0, 1)]
    assert judged(*story, check="plans survive") == []


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (planned(2.0, 2, None), "the plan of step 2 was forgotten"),
        (planned(2.0, 2, SeedingState(t_seed_s=0.5, n_prem=1)), "changed without a measurement"),
        (planned(2.0, 1, PLANNED), "was replaced by that of 1"),
        (planned(2.0, 3, SeedingState(t_seed_s=2.0, n_prem=2, learnt=LEARNT)), "the best windows of [2]"),
        (
            planned(2.0, 3, SeedingState(t_seed_s=2.0, n_prem=2, memory={2: 1.0})),
            "the learnt model of a step was forgotten",
        ),
        (
            answered(2.0, 9.0, 2),
            "a plan was answered with T_seed 9.000 s and N_prem 2; the journal has",
        ),
    ],
)
def test_plan_that_forgets_is_found(after: Fact, text: str) -> None:
    found = judged(planned(1.0, 2, PLANNED), after, check="plans survive")
    assert any(text in one for one in found), found


def test_width_that_changes_without_a_measurement_or_is_in_no_journal_is_found() -> None:
    def committed(at_s: float, step: int, width: int | None) -> Fact:
        widths = None if width is None else WidthState(width=width)
        state = ClusterState(job=JOB, state="running", planned_step=step, seeding=PLANNED, widths=widths)
        return Committed(at_s, "head", SCHEDULER, 1, (state,), snapshot=True)

    def replied(at_s: float, width: int) -> Fact:
        plan = Plan(t_seed_s=PLANNED.t_seed_s, n_prem=PLANNED.n_prem, width=width)
        return passed(at_s, plan, source=SCHEDULER, to="training/controller", mode="reply")

    before = committed(1.0, 2, 2)
    assert judged(before, replied(1.1, 2), committed(2.0, 3, 1), check="plans survive") == []
    for after, text in (
        (committed(2.0, 2, 1), "the width of step 2 changed without a measurement, from 2 to 1"),
        (committed(2.0, 3, None), "the width 2 of step 2 was forgotten"),
        (replied(2.0, 1), "a plan was answered with a width of 1; the journal has 2"),
    ):
        assert text in judged(before, after, check="plans survive")


def test_width_of_the_next_step_may_be_decided_before_its_plan_and_then_stays() -> None:
    def committed(at_s: float, planned_step: int, width: int, step: int) -> Fact:
        widths = WidthState(width=width, step=step)
        state = ClusterState(
            job=JOB, state="running", planned_step=planned_step, seeding=PLANNED, widths=widths
        )
        return Committed(at_s, "head", SCHEDULER, 1, (state,), snapshot=True)

    early = committed(1.0, 2, 2, 3)
    assert judged(committed(0.5, 2, 1, 2), early, committed(2.0, 3, 2, 3), check="plans survive") == []
    for after, text in (
        (committed(2.0, 3, 1, 3), "the width of step 3 changed twice, from 2 to 1"),
        (committed(2.0, 2, 1, 3), "the width of step 2 changed without a measurement, from 2 to 1"),
        (committed(2.0, 3, 2, 2), "after the width of step 3 that of 2 was planned"),
    ):
        assert text in judged(early, after, check="plans survive")


def of_kinds(**learnt: StepStatistics) -> SeedingState:
    """The state of a job with rounds, ahead of a round of the first of these kinds."""
    kinds = {kind: KindState(t_seed_s=2.0, memory={2: 2.0}, learnt=values) for kind, values in learnt.items()}
    return SeedingState(t_seed_s=2.0, n_prem=2, learnt=next(iter(learnt.values())), kinds=kinds)


SHORT = StepStatistics(lengths=[[[3, 4]], [[5, 6]]])
LONG = StepStatistics(lengths=[[[70, 80]]])


def test_plan_of_a_round_of_another_kind_forgets_nothing() -> None:
    story = [
        planned(1.0, 2, of_kinds(short=LEARNT)),
        planned(2.0, 3, of_kinds(short=SHORT)),
        planned(3.0, 4, of_kinds(long=LONG, short=SHORT)),
        planned(4.0, 5, of_kinds(short=SHORT, long=LONG)),
    ]
    assert judged(*story, check="plans survive") == []


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (of_kinds(long=LONG), "what was learnt of short rounds was forgotten"),
        (of_kinds(long=LONG, short=LONG), "short rounds: the model of a step was learnt anew"),
        (
            of_kinds(long=StepStatistics(), short=SHORT),
            "long rounds: the learnt model of a step was forgotten",
        ),
        (PLANNED, "what was learnt of long rounds was forgotten"),
    ],
)
def test_plan_that_forgets_a_kind_of_round_is_found(after: SeedingState, text: str) -> None:
    before = of_kinds(short=SHORT, long=LONG)
    found = judged(planned(1.0, 2, before), planned(2.0, 3, after), check="plans survive")
    assert any(text in one for one in found), found


def test_host_beyond_the_plan_is_found() -> None:
    story = [planned(1.0, 2, PLANNED), HostRented(5.0, "spot-2", 1)]
    assert judged(*story, check="fleet size") == []
    assert judged(*story, HostRented(6.0, "spot-3", 2), check="fleet size") == [
        "spot-3 was rented beside 2 others; the newest plan wishes for 2"
    ]


def test_wished_host_that_is_not_rented_is_found() -> None:
    (found,) = judged(planned(1.0, 2, PLANNED), *looks(40, rented=1), check="fleet size")
    assert found == "1 hosts for 32 s; the newest plan wishes for 2"


def test_host_that_outlives_its_job_is_found() -> None:
    left = HostsLeft(90.0, ("spot-1",), 30.0, 40.0)
    assert judged(left, check="fleet size") == ["spot-1 are paid for 30 s after the end of the job"]
    assert judged(msgspec.structs.replace(left, hosts=()), check="fleet size") == []


def test_account_that_is_not_the_bill_is_found() -> None:
    paid = Paid(90.0, 200.0, 190.0, 3, 0.0)
    assert judged(paid, check="fleet size") == [], "each stay is seen some seconds late"
    (found,) = judged(msgspec.structs.replace(paid, account_s=300.0), check="fleet size")
    assert found.startswith("the cloud bills 200.0 s of preemptible hosts, in 3 stays; the history has 300.0")


def test_account_may_lack_the_time_in_which_a_living_agent_was_not_seen() -> None:
    hung = look("spot-1", steady_s=0.0, calm_s=0.0)
    paid = Paid(90.0, 200.0, 150.0, 3, 0.0)
    assert judged(*looks(40, hung), paid, check="fleet size") == [], "its agent hung for 40 s"
    assert judged(*looks(40, look("spot-1")), paid, check="fleet size"), "nothing was against it"
    assert judged(*looks(40, hung, recorded=("spot-1",)), paid, check="fleet size"), "the history had it"
    more = msgspec.structs.replace(paid, account_s=250.0)
    assert judged(*looks(40, hung), more, check="fleet size"), "it lacks time, and has none too much"


# -- windows, answers, credit --


def trainer(at_s: float, message: Message, way: Literal["in", "out"] = "out") -> MessagePassed:
    source, to = (TRAINER, MANAGER) if way == "out" else (MANAGER, TRAINER)
    return passed(at_s, message, source=source, to=to, way=way, process="reserved-1/trainer")


def test_planned_window_that_is_not_opened_is_found() -> None:
    order = trainer(1.0, TrainStep(step=2, batch="step-2", groups=1, t_seed_s=2.0), "in")
    ended = trainer(9.0, SaveState(step=2, trained=None))
    (found,) = judged(opened(3), order, ended, check="planned window")
    assert found == "step 2 had a window of 2.00 s and opened none; 3 of its requests were not over"
    window = [trainer(1.1, OpenSeeding(version=1, root=ROOT)), trainer(3.1, CloseSeeding())]
    assert judged(opened(3), order, *window, ended, check="planned window") == []


def first_look(at_s: float, taker: int) -> list[Fact]:
    """The first question of a trainer, and the manager's answer, as they pass the manager."""
    ask = TakeGroups(batch="step-2", taker=taker, have=[], min_groups=1, wait_s=0.0)
    return [
        passed(at_s, ask, source=TRAINER, to=MANAGER, way="in"),
        passed(at_s, Groups(groups=[], remaining=0, remote_serving=1), to=TRAINER, mode="reply"),
    ]


def test_planned_window_is_judged_by_the_batch_when_the_trainer_looks_at_it() -> None:
    order = trainer(1.0, TrainStep(step=2, batch="step-2", groups=1, t_seed_s=2.0), "in")
    over = commit(3.0, GroupsDropped(batch="step-2", groups=(0,), why="uniform"))
    ended = trainer(9.0, SaveState(step=2, trained=None))
    check = "planned window"
    assert judged(opened(3), order, over, *first_look(4.0, 7), ended, check=check) == [], (
        "it was complete then"
    )
    assert judged(opened(3), order, *first_look(2.0, 7), over, ended, check=check), "it was complete later"
    assert judged(opened(3), order, *first_look(2.0, 7), over, *first_look(4.0, 7), ended, check=check), (
        "a later look"
    )
    again = [*first_look(2.0, 7), over, *first_look(4.0, 8)]
    assert judged(opened(3), order, *again, ended, check=check) == [], "the first trainer died meanwhile"


def test_window_that_is_closed_early_is_found() -> None:
    order = trainer(1.0, TrainStep(step=2, batch="step-2", groups=1, t_seed_s=2.0), "in")
    missing = trainer(1.4, Groups(groups=[], remaining=1, remote_serving=1), "in")
    window = [order, trainer(1.1, OpenSeeding(version=1, root=ROOT)), missing, trainer(1.5, CloseSeeding())]
    (found,) = judged(opened(3), *window, check="planned window")
    assert found == "step 2: a window of 2.00 s was closed after 0.40 s, and 1 groups are missing"


def test_later_window_of_a_step_is_not_judged_by_the_plan() -> None:
    order = trainer(1.0, TrainStep(step=2, batch="step-2", groups=1, t_seed_s=2.0), "in")
    missing = trainer(3.0, Groups(groups=[], remaining=1, remote_serving=0), "in")
    opening = OpenSeeding(version=1, root=ROOT)
    planned_one = [order, trainer(1.1, opening), missing, trainer(3.1, CloseSeeding())]
    bridge = [trainer(4.0, opening), trainer(4.3, CloseSeeding())]
    assert judged(opened(3), *planned_one, *bridge, check="planned window") == []


def hinted(at_s: float, kind: Literal["none", "hint", "notice"] = "hint") -> MessagePassed:
    return passed(at_s, CloudNotice(kind=kind), to="spot-1/agent", way="in", process="spot-1/agent")


def answers(end_s: int, *, silent_from_s: float = LONG_S, silent_until_s: float = LONG_S) -> list[Fact]:
    """The answers of the head to the hellos of both hosts."""
    return [
        passed(second, NodeWork(job=None), to=f"{host}/agent", way="in", process=f"{host}/agent")
        for second in range(1, end_s)
        if not silent_from_s <= second < silent_until_s
        for host in ("spot-1", "spot-2")
    ]


def test_request_for_a_drained_host_is_found() -> None:
    well = looks(40, look("spot-1"), look("spot-2"))
    story = [opened(4), *well, *answers(40), hinted(10.0)]
    assert judged(*story, sent(12.0, 1), check="drained hosts") == []  # the manager may not know yet
    assert judged(*story, sent(30.0, 1, to=TWO), check="drained hosts") == []
    assert judged(*story, hinted(20.0, "none"), sent(30.0, 1), check="drained hosts") == []
    late = f"{ONE} gets 2 requests; spot-1 is drained for 20.0 s, and could report that for 20.0 s"
    assert judged(*story, sent(30.0, 2), sent(31.0, 1, first=2), check="drained hosts") == [late]


def test_request_for_a_drained_host_is_excused_until_the_host_has_repeated_it() -> None:
    story = [opened(4), hinted(10.0)]
    well = [*looks(40, look("spot-1")), *answers(40)]
    manager = passed(27.0, ForgetAll(), to=BALANCER, way="local")
    assert judged(*story, *well, manager, sent(30.0, 1), check="drained hosts") == []
    assert len(judged(*story, *well, manager, sent(33.0, 1), check="drained hosts")) == 1
    reply = Registered(manager=address(MANAGER), epoch="1.1", stream_endpoint="e", stream_key="")
    again = passed(27.0, reply, to=ONE, mode="reply")
    assert judged(*story, *well, again, sent(30.0, 1), check="drained hosts") == []
    broken = [*looks(40, look("head", "head", calm_s=2.0), look("spot-1")), *answers(40)]
    assert judged(*story, *broken, sent(30.0, 1), check="drained hosts") == []
    for until_s in (28.0, LONG_S):
        cut_off = [*looks(40, look("spot-1")), *answers(40, silent_from_s=20.0, silent_until_s=until_s)]
        assert judged(*story, *cut_off, sent(30.0, 1), check="drained hosts") == []
    other_life = [*looks(40, look("spot-1", agent_s=5.0)), *answers(40)]
    assert judged(*story, *other_life, sent(30.0, 1), check="drained hosts") == []


def test_answer_before_its_commit_is_found() -> None:
    work = passed(1.0, NodeWork(job=JOB), source=SCHEDULER, to="spot-1/agent", mode="reply")
    assert judged(members(0.5, "spot-1"), work, check="answers") == []
    assert judged(work, check="answers") == ["spot-1 was given work and is no member in the journal"]
    reply = Registered(
        manager=address(MANAGER), epoch="1.1", stream_endpoint="e", stream_key="", weights=None
    )
    joined = passed(1.0, reply, to=ONE, mode="reply")
    assert judged(opened(1), joined, check="answers") == []
    assert judged(joined, check="answers") == [f"{ONE} was registered and has not joined in the journal"]
    gone = commit(2.0, InstanceGone(instance=ONE, incarnation=5, cause="link down"))
    again = passed(3.0, reply, to=ONE, mode="reply")  # to a caller that lost the first answer
    assert judged(opened(1), joined, gone, again, check="answers") == []
    assert len(judged(opened(1), gone, again, check="answers")) == 1


def grant(at_s: float, upto: int, in_hand: int = -1, receiver: int = 1) -> CreditGranted:
    return CreditGranted(at_s, receiver, ONE, 5, upto, in_hand)


def frame(at_s: float, seq: int, fate: Fate = "delivered", receiver: int = 1) -> FrameArrived:
    return FrameArrived(at_s, receiver, ONE, 5, seq, fate)


def test_frame_beyond_its_credit_is_found() -> None:
    story = [grant(1.0, 2, in_hand=0), frame(1.1, 1), frame(1.2, 2)]
    assert judged(*story, frame(1.3, 3), check="stream credit") == [
        "frame 3 of spot-1/engine#5 was sent; its credit ended at 2"
    ]
    assert judged(*story, grant(1.25, 4), frame(1.3, 3), check="stream credit") == []


def test_frame_within_its_credit_that_is_dropped_is_found() -> None:
    story = [grant(1.0, 3, in_hand=0), frame(1.1, 1), frame(1.3, 2, "dropped")]
    assert judged(*story, check="stream credit") == [
        "frame 2 of spot-1/engine#5 was dropped; it was next in order, and credit was granted up to 3"
    ]


@pytest.mark.parametrize(
    "last", [frame(1.3, 3, "dropped"), frame(1.3, 1, "dropped"), frame(1.3, 2, "refused")]
)
def test_gap_duplicate_and_given_up_incarnation_may_be_dropped(last: FrameArrived) -> None:
    assert judged(grant(1.0, 3, in_hand=0), frame(1.1, 1), last, check="stream credit") == []


def test_restarted_receiver_counts_from_its_own_grant() -> None:
    before = [grant(1.0, 9, in_hand=0), *(frame(1.1, seq) for seq in range(1, 7))]
    late = frame(2.1, 9, "dropped", receiver=2)  # within the credit of the receiver before it
    again = [grant(2.0, 8, in_hand=5, receiver=2), late, frame(2.2, 6, receiver=2)]
    assert judged(*before, *again, check="stream credit") == []
    assert judged(*before, *again, frame(2.3, 7, "dropped", receiver=2), check="stream credit") == [
        "frame 7 of spot-1/engine#5 was dropped; it was next in order, and credit was granted up to 8"
    ]
