"""The check of seeding windows: what makes one too long, and what does not."""

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from gleaner.actors.names import BALANCER, TRAINER
from gleaner.actors.protocol.balancer import InstanceServes, InstanceUp
from gleaner.actors.protocol.rollout import Groups, TakeGroups
from gleaner.actors.protocol.training import CloseSeeding, HalveSeeding, OpenSeeding, TrainStep
from gleaner.chaos.invariants.facts import Fact, MessagePassed
from gleaner.chaos.invariants.seeding import SeedingEnds
from gleaner.supervisor import Message

MANAGER, ENGINE, SPOT = "rollout/manager", "reserved-1/engine", "spot-1/engine"
PLAN_S = 2.0


def ordered(at_s: float) -> MessagePassed:
    message = TrainStep(step=1, batch="step-1", groups=8, t_seed_s=PLAN_S)
    return MessagePassed(at_s, "reserved-1/trainer", "in", "ask", "training/controller", TRAINER, message)


def to_engine(at_s: float, message: Message) -> MessagePassed:
    return MessagePassed(at_s, "reserved-1/trainer", "local", "ask", TRAINER, ENGINE, message)


def reported(at_s: float, message: Message) -> MessagePassed:
    return MessagePassed(at_s, "head/rollout", "local", "tell", MANAGER, BALANCER, message)


def up(at_s: float, incarnation: int) -> MessagePassed:
    new = InstanceUp(
        instance=SPOT, incarnation=incarnation, kind="preemptible", slots=8, pending=0, executing=0
    )
    return reported(at_s, new)


def serves(at_s: float, incarnation: int) -> MessagePassed:
    return reported(at_s, InstanceServes(instance=SPOT, incarnation=incarnation, version=0))


def taken(asked_s: float, answered_s: float) -> list[Fact]:
    """The trainer asks for groups, and gets an answer."""
    ask = TakeGroups(batch="step-1", taker=1, have=[], min_groups=1, wait_s=answered_s - asked_s)
    reply = Groups(groups=[], remaining=4, remote_serving=0)
    return [
        MessagePassed(asked_s, "reserved-1/trainer", "out", "ask", TRAINER, MANAGER, ask),
        MessagePassed(asked_s, "head/rollout", "in", "ask", TRAINER, MANAGER, ask),
        MessagePassed(answered_s, "head/rollout", "out", "reply", MANAGER, TRAINER, reply),
        MessagePassed(answered_s, "reserved-1/trainer", "in", "reply", MANAGER, TRAINER, reply),
    ]


def judged(facts: Iterable[Fact]) -> list[str]:
    check = SeedingEnds()
    return [text for fact in facts for text in check.see(fact)]


def window(*between: Fact, close_s: float) -> list[Fact]:
    opened = [ordered(0.0), to_engine(0.0, OpenSeeding(version=0, root=b""))]
    return [*opened, *taken(0.0, 1.0), *between, to_engine(close_s, CloseSeeding())]


def test_window_beyond_its_plan_is_too_long_while_an_instance_serves() -> None:
    assert judged(window(up(0.5, 3), serves(0.5, 3), close_s=PLAN_S)) == []
    (text,) = judged(window(up(0.5, 3), serves(0.5, 3), close_s=6.0))
    assert "4.00 s longer than planned" in text


def test_replaced_instance_serves_no_more() -> None:
    """It came back as another incarnation before its end was reported, and has no weights yet."""
    assert judged(window(up(0.5, 3), serves(0.5, 3), up(0.6, 4), close_s=6.0)) == []
    (text,) = judged(window(up(0.5, 3), serves(0.5, 3), up(0.6, 4), serves(3.0, 4), close_s=6.0))
    assert "3.00 s longer than planned" in text


@pytest.mark.parametrize(("began_s", "too_long"), [(1.5, False), (3.0, True)])
def test_rest_of_a_micro_batch_on_half_is_not_counted(began_s: float, too_long: bool) -> None:
    """One that begins after the end of the window is: the rest is faster on all devices."""
    halved = [to_engine(1.0, HalveSeeding()), *taken(1.0, began_s)]
    assert bool(judged(window(up(0.5, 3), serves(0.5, 3), *halved, close_s=6.0))) == too_long


def test_training_before_a_stair_is_counted() -> None:
    assert judged(window(up(0.5, 3), serves(0.5, 3), *taken(1.0, 1.5), close_s=6.0)) != []


def test_answer_that_is_sent_again_is_under_way_since_the_first_time() -> None:
    ask, taken_in, reply, received = taken(1.0, 4.0)
    served = [up(0.5, 3), ask, taken_in, serves(2.0, 3)]
    again = [replace(reply, at_s=3.0), replace(received, at_s=5.0)]
    assert judged(window(*served, replace(reply, at_s=2.0), *again, close_s=5.0)) == []
    assert judged(window(*served, *again, close_s=5.0)) != []


def test_answer_to_an_earlier_life_of_the_trainer_does_not_end_its_wait() -> None:
    """The manager was away: it answers first what a trainer asked that has died since."""
    asked, arrived, sent, got = (replace(fact, at_s=4.5) for fact in taken(0.0, PLAN_S))
    opened = [ordered(0.0), to_engine(0.0, OpenSeeding(version=0, root=b"")), replace(asked, at_s=0.0)]
    earlier = [*opened, up(0.5, 3), serves(0.5, 3), arrived, sent, got]
    own = [replace(sent, at_s=6.5), replace(got, at_s=6.5)]
    assert judged([*earlier, *own, to_engine(6.5, CloseSeeding())]) == []
    assert judged([*earlier, to_engine(6.5, CloseSeeding())]) != []
