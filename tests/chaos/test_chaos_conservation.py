"""Work conservation and the seeding window, on hand-written histories."""

import pytest

from gleaner.actors.names import BALANCER
from gleaner.actors.protocol.balancer import InstanceServes, InstanceSuspected, InstanceUp, Placed
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.rollout import Groups, HoldBack, TakeGroups, Weights
from gleaner.actors.protocol.training import CloseSeeding, OpenSeeding, TrainStep
from gleaner.actors.rollout.journal.journaled_state import BatchWeights
from gleaner.actors.rollout.state.events import Dispatched, FrameLogged, InstanceJoined
from gleaner.chaos.invariants.catalogue import jury_of
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed
from gleaner.supervisor import Message

ONE, MANAGER, TRAINER = "spot-1/engine", "rollout/manager", "training/trainer"
ROOT = b"r1"


def from_manager(at_s: float, message: Message) -> MessagePassed:
    """A message of the manager to the balancer beside it."""
    return MessagePassed(at_s, "head/rollout", "local", "tell", MANAGER, BALANCER, message)


def alive(at_s: float) -> MessagePassed:
    """The manager's process sends a message."""
    return MessagePassed(at_s, "head/rollout", "out", "tell", "x", "y", CloseSeeding())


def commit(at_s: float, *messages: Message) -> Committed:
    return Committed(at_s, "head", MANAGER, 1, messages)


def begun(requests: int, slots: int = 2) -> list[Fact]:
    """A batch of this many requests, and one instance that serves it."""
    prompt = Prompt(split="train", index=0, tokens=(1,), seeds=tuple(range(requests)))
    batch = BatchSubmitted(batch="step-1", version=1, prompts=(prompt,), max_new_tokens=8)
    weights = BatchWeights(batch="step-1", weights=Weights(version=1, root=ROOT, sources=()))
    up = InstanceUp(instance=ONE, incarnation=5, kind="preemptible", slots=slots, pending=0, executing=0)
    return [
        commit(0.0, batch, weights, InstanceJoined(instance=ONE, incarnation=5)),
        from_manager(0.0, up),
        from_manager(0.0, InstanceServes(instance=ONE, incarnation=5, version=1, root=ROOT)),
    ]


def dispatched(at_s: float, count: int) -> Committed:
    names = tuple(f"step-1/0/{number}" for number in range(count))
    tickets = tuple(range(1, count + 1))
    return commit(at_s, Dispatched(instance=ONE, incarnation=5, version=1, tickets=tickets, requests=names))


def decoding(at_s: float, count: int) -> Committed:
    tickets = b"".join(ticket.to_bytes(4, "little") for ticket in range(1, count + 1))
    zeros = bytes(4 * count)
    frame = FrameLogged(
        instance=ONE, incarnation=5, seq=1, tickets=tickets, tokens=zeros, logprobs=zeros, flags=bytes(count)
    )
    return commit(at_s, frame)


def until(end_s: float, begin_s: float = 0.0) -> list[Fact]:
    return [alive(begin_s + 0.2 * tick) for tick in range(1, round((end_s - begin_s) / 0.2) + 1)]


def judged(*facts: Fact, check: str = "work conservation", max_pending: int = 2) -> list[str]:
    jury = jury_of(None, max_pending=max_pending)
    for fact in sorted(facts, key=lambda fact: fact.at_s):
        jury.see(fact)
    return [found.text for found in jury.found if found.check == check]


def test_free_slot_beside_a_queue_is_found_after_limit() -> None:
    story = [*begun(3), dispatched(0.1, 1), decoding(0.2, 1)]
    assert judged(*story, *until(3.0)) == []
    (found,) = judged(*story, *until(6.0))
    assert found.startswith(f"{ONE} has had 1 of 2 slots free for 3.")
    assert found.endswith("and 2 requests wait, as step-1/0/1")


@pytest.mark.parametrize(
    "excuse",
    [
        dispatched(0.1, 3),  # no request waits
        dispatched(0.1, 1),  # a request is on its way to the instance
        from_manager(0.1, InstanceServes(instance=ONE, incarnation=5, version=None)),
        from_manager(0.1, InstanceServes(instance=ONE, incarnation=5, version=1, root=b"other")),
        from_manager(0.1, InstanceSuspected(instance=ONE, incarnation=5, suspected=True)),
        MessagePassed(0.1, "head/rollout", "in", "ask", "x", MANAGER, HoldBack(for_s=60.0)),
        MessagePassed(0.1, "head/rollout", "local", "reply", BALANCER, MANAGER, Placed(instances=[ONE])),
    ],
)
def test_slot_is_not_free_while_an_excuse_holds(excuse: Fact) -> None:
    assert judged(*begun(3), excuse, *until(6.0)) == []


def test_stalled_manager_leaves_no_slot_free() -> None:
    late = commit(30.0)
    assert judged(*begun(3), *until(1.0), late) == []


def test_stock_of_requests_in_an_instance_is_found() -> None:
    assert judged(*begun(9), dispatched(0.1, 8), *until(1.0)) == [], "Θ grows to four times with the speed"
    (found,) = judged(*begun(9), dispatched(0.1, 9), *until(1.0))
    assert found == f"9 requests wait in {ONE}, at most 8 may"


def trainer(at_s: float, message: Message) -> MessagePassed:
    return MessagePassed(at_s, "reserved-1/trainer", "out", "ask", TRAINER, MANAGER, message)


def window(plan_s: float, served_s: float, closed_s: float, late_s: float = 0.0) -> list[Fact]:
    """One window, with an instance that serves since `served_s`; the manager answers `late_s` too late."""
    up = InstanceUp(instance=ONE, incarnation=5, kind="preemptible", slots=2, pending=0, executing=0)
    order = TrainStep(step=2, batch="step-2", groups=1, t_seed_s=plan_s)
    take = TakeGroups(batch="step-2", taker=1, have=[], min_groups=1, wait_s=closed_s - 1.0 - late_s)
    groups = Groups(groups=[], remaining=1, remote_serving=1)
    return [
        MessagePassed(0.5, "reserved-1/trainer", "in", "ask", "training/controller", TRAINER, order),
        from_manager(0.6, up),
        trainer(0.9, OpenSeeding(version=1, root=ROOT)),
        trainer(1.0, take),
        from_manager(served_s, InstanceServes(instance=ONE, incarnation=5, version=1, root=ROOT)),
        MessagePassed(closed_s, "reserved-1/trainer", "in", "reply", MANAGER, TRAINER, groups),
        trainer(closed_s, CloseSeeding()),
    ]


def test_seeding_window_beyond_plan_beside_serving_instance_is_found() -> None:
    (found,) = judged(*window(1.0, 0.7, 3.0), check="seeding window")
    assert found == (
        "a window of 1.00 s was open for 2.00 s, 1.00 s longer than planned with an instance that serves"
    )
    (found,) = judged(*window(0.0, 2.0, 3.0), check="seeding window")
    assert "1.00 s longer" in found, "it is due when the first instance serves"


def slow_link(replied_s: float) -> list[Fact]:
    """A window until the first instance serves (at 1.1 s): the question is under way for 1.0 s, and the
    manager's answer for 0.6 s."""
    *begin, took, serves, _, _ = window(0.0, 1.1, 3.0)
    answer = Groups(groups=[], remaining=1, remote_serving=1)
    assert isinstance(took, MessagePassed)
    return [
        *begin,
        took,
        serves,
        MessagePassed(2.0, "head/rollout", "in", "ask", TRAINER, MANAGER, took.message),
        MessagePassed(replied_s, "head/rollout", "out", "reply", MANAGER, TRAINER, answer),
        MessagePassed(replied_s + 0.6, "reserved-1/trainer", "in", "reply", MANAGER, TRAINER, answer),
        trainer(replied_s + 0.6, CloseSeeding()),
    ]


def test_seeding_window_is_judged_without_the_time_on_the_link() -> None:
    assert judged(*slow_link(2.0), check="seeding window") == []
    (found,) = judged(*slow_link(2.6), check="seeding window")
    assert found == (
        "a window of 0.00 s was open for 2.20 s, 0.60 s longer than planned with an instance that serves"
    )


@pytest.mark.parametrize(
    "sound",
    [
        window(1.0, 0.7, 2.1),  # as planned
        window(0.0, 5.0, 5.1),  # until the first instance serves
        window(1.0, 0.7, 4.0, late_s=2.0),  # the manager answered late
        window(0.0, 9.0, 8.0),  # no request was left
    ],
)
def test_seeding_window_of_planned_length_passes(sound: list[Fact]) -> None:
    assert judged(*sound, check="seeding window") == []
