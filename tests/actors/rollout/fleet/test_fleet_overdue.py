"""Overdue work: the silence of an instance, while the journal of the manager is slow."""

import asyncio
from types import SimpleNamespace
from typing import cast

from rollout_world import submission

from gleaner.actors.protocol.instances import RegisterInstance
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.fleet.overdue import OverdueWork
from gleaner.actors.rollout.journal.frame_intake import Followers, Intake
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.events import Dispatched, InstanceJoined
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.supervisor import Address, Context, Message
from gleaner.transport.token_frame import PackedFrame

NAME, INCARNATION, DEADLINE_S = "spot-1/engine", 4, 10.0


class SlowJournal:
    """Applies events at once; commits when the test says so."""

    def __init__(self) -> None:
        self.state = RolloutState()
        self.commits: list[asyncio.Future[int]] = []

    def enter(self, *events: Message) -> tuple[list[Effects], asyncio.Future[int]]:
        self.commits.append(asyncio.get_running_loop().create_future())
        return [self.state.apply(event) for event in events], self.commits[-1]


class Member:
    """An instance that holds a request, and the parts that measure its silence, on a clock of their own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.journal, self.instances = SlowJournal(), Instances()
        state = self.journal.state
        state.apply(submission())
        state.apply(InstanceJoined(instance=NAME, incarnation=INCARNATION))
        sent = Dispatched(
            instance=NAME, incarnation=INCARNATION, version=1, tickets=(1,), requests=("step-1/0/0",)
        )
        state.apply(sent)
        worker = Address(name=NAME, endpoint="tcp://10.0.0.4:1", incarnation=INCARNATION)
        register = RegisterInstance(instance=NAME, worker=worker, kind="preemptible", slots=2, received=0)
        self.instance = self.instances.register(register, "1.1", self.now_s)
        followers = cast(Followers, SimpleNamespace(entered=dict, committed=lambda marks: None))
        self.intake = Intake(
            cast(JournaledState, self.journal),
            lambda changes: None,
            lambda name: self.instances.answered(name, self.now_s),
            asyncio.Event.wait,
            followers,
        )
        ctx = cast(
            Context,
            SimpleNamespace(
                turn_time=lambda: self.now_s, lists_waits=lambda waits: None, name="rollout/manager"
            ),
        )
        self.overdue = OverdueWork(ctx, state, self.instances, DEADLINE_S, self.intake.uncommitted)

    def frame_arrives(self, seq: int) -> None:
        self.intake.take(PackedFrame(NAME, INCARNATION, seq, b""))
        self.intake.enter_now()

    def silent_s(self) -> float:
        (tokens,) = [wait for wait in self.overdue.waits(0.0) if wait.what == "tokens"]
        assert tokens.since_s == self.overdue.silent_s(self.instance, self.now_s)
        assert tokens.left_s == max(0.0, DEADLINE_S - tokens.since_s)
        return tokens.since_s


async def test_instance_is_not_silent_while_its_frames_wait_for_their_commit() -> None:
    member = Member()
    acknowledging = asyncio.create_task(member.intake.acknowledge())
    member.now_s = 3.0
    assert member.silent_s() == 3.0
    member.frame_arrives(1)
    member.frame_arrives(2)
    for commit in member.journal.commits:
        member.now_s += 3 * DEADLINE_S
        assert member.silent_s() == 0.0
        commit.set_result(0)
        await asyncio.sleep(0.01)
    assert member.silent_s() == 0.0
    member.now_s += DEADLINE_S
    assert member.silent_s() == DEADLINE_S, "its silence counts from the last commit"
    acknowledging.cancel()


async def test_instance_is_not_silent_while_a_dispatch_to_it_waits() -> None:
    member = Member()
    taken = asyncio.Event()

    async def delivery() -> None:
        await taken.wait()

    member.instance.sending.append(sending := asyncio.create_task(delivery()))
    member.now_s = 3 * DEADLINE_S
    assert member.silent_s() == 0.0
    taken.set()
    await sending
    assert member.silent_s() == 3 * DEADLINE_S
