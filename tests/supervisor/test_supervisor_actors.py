"""Actors in one or two processes on a loopback wire.

The tests cover `tell`, `ask`, mailboxes, watches, the registry and journals.
"""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gleaner.supervisor import (
    Actor,
    Address,
    AskTimeout,
    Crashed,
    Done,
    Lane,
    Message,
    Overloaded,
    Refused,
    Terminated,
    Unreachable,
    handles,
)
from gleaner.supervisor.names.client import Names
from gleaner.supervisor.names.leases import Leases
from gleaner.supervisor.testing import TEST_LIMITS, TestSystem
from gleaner.transport.wire import CONNECT_DEADLINE_S


class Count(Message, frozen=True):
    text: str


class Totals(Message, frozen=True):
    top: int = 10


class TotalsAre(Message, frozen=True):
    words: dict[str, int]


class Words(Message, frozen=True):
    words: dict[str, int]


class WordCounter(Actor):
    """The counter of the README: totals survive the actor's death."""

    async def on_start(self) -> None:
        self.totals: Counter[str] = Counter()
        async for event in self.ctx.journal.replay():
            assert isinstance(event, Words)
            self.totals.update(event.words)

    @handles(Count)
    async def count(self, message: Count) -> None:
        words = Counter(message.text.split())
        await self.ctx.journal.append(Words(words=dict(words)))
        self.totals.update(words)

    @handles(Totals)
    async def totals_now(self, message: Totals) -> TotalsAre:
        return TotalsAre(words=dict(self.totals.most_common(message.top)))


class Block(Message, frozen=True):
    seconds: float


class Wait(Message, frozen=True):
    pass


class Fail(Message, frozen=True):
    pass


class Decline(Message, frozen=True):
    pass


class Urgent(Message, frozen=True):
    pass


class Log(Message, frozen=True):
    pass


class Entries(Message, frozen=True):
    entries: list[str]


class Odd(Actor):
    """Blocks, fails, declines and remembers."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.go_on = asyncio.Event()

    @handles(Wait)
    async def wait(self, message: Wait) -> None:
        self.entries.append("block")
        await self.go_on.wait()

    @handles(Block)
    async def block(self, message: Block) -> None:
        self.entries.append("block")
        await asyncio.sleep(message.seconds)

    @handles(Fail)
    async def fail(self, message: Fail) -> None:
        raise ValueError("on purpose")

    @handles(Decline)
    async def decline(self, message: Decline) -> None:
        raise Refused("not today")

    @handles(Count)
    async def count(self, message: Count) -> None:
        self.entries.append(message.text)

    @handles(Urgent, lane=Lane.SYSTEM)
    async def urgent(self, message: Urgent) -> None:
        self.entries.append("urgent")

    @handles(Log)
    async def log(self, message: Log) -> Entries:
        return Entries(entries=self.entries)


class Watcher(Actor):
    def __init__(self, target: Address) -> None:
        self.target = target
        self.seen: list[Terminated] = []

    async def on_start(self) -> None:
        self.ctx.watch(self.target)

    async def on_terminated(self, event: Terminated) -> None:
        self.seen.append(event)

    @handles(Log)
    async def log(self, message: Log) -> Entries:
        return Entries(entries=[f"{event.name}#{event.incarnation} {event.cause}" for event in self.seen])


async def test_totals_survive_a_kill(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        first = system.spawn("counter", WordCounter)
        await system.ask("counter", Count(text="a a b"), Done)
        system.kill("counter")
        second = system.spawn("counter", WordCounter)
        reply = await system.ask("counter", Totals(), TotalsAre)
        assert reply.words == {"a": 2, "b": 1}
        assert second.incarnation > first.incarnation


async def test_ask_ends_with_timeout_refusal_or_crash(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        address = system.spawn("odd", Odd)
        with pytest.raises(AskTimeout):
            await system.ask(address, Block(seconds=0.3), Done, deadline_s=0.05)
        with pytest.raises(Refused, match="not today"):
            await system.ask(address, Decline(), Done)
        with pytest.raises(Refused, match="does not handle"):
            await system.ask(address, Totals(), TotalsAre)
        with pytest.raises(Crashed, match="on purpose"):
            await system.ask(address, Fail(), Done)
        with pytest.raises(Unreachable):
            await system.ask(address, Log(), Entries)
        with pytest.raises(AskTimeout, match="no actor holds the name"):
            await system.ask("nobody", Log(), Entries, deadline_s=0.2)


async def test_full_mailbox_is_overloaded_and_system_lane_first(
    tmp_path: Path,
) -> None:
    async with TestSystem(tmp_path) as system:
        odd = Odd()
        address = system.spawn("odd", lambda: odd)
        blocked = asyncio.create_task(system.ask(address, Wait(), Done, deadline_s=60.0))
        async with asyncio.timeout(60):
            while not odd.entries:
                await asyncio.sleep(0)
        for number in range(TEST_LIMITS.mailbox):
            await system.tell(address, Count(text=str(number)))
        with pytest.raises(Overloaded):
            await system.ask(address, Log(), Entries)
        await system.tell(address, Urgent())
        odd.go_on.set()
        await blocked
        entries = (await system.ask(address, Log(), Entries)).entries
        assert entries[:2] == ["block", "urgent"]
        assert entries[2:] == [str(number) for number in range(TEST_LIMITS.mailbox)]


async def test_local_message_waits_for_capacity_instead_of_loss(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        address = system.spawn("odd", Odd)
        await system.tell(address, Block(seconds=0.1))
        many = TEST_LIMITS.mailbox * 3
        for number in range(many):
            await system.tell(address, Count(text=str(number)))
        await system.tell(address, Count(text="last"))
        entries = []
        async with asyncio.timeout(60):
            while "last" not in entries:
                await asyncio.sleep(0.01)
                entries = (await system.ask(address, Log(), Entries)).entries
        assert entries[1:-1] == [str(number) for number in range(many)]


async def test_expired_message_is_dropped_by_the_receiver(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        address = system.spawn("odd", Odd)
        await system.tell(address, Block(seconds=0.2))
        with pytest.raises(AskTimeout):
            await system.ask(address, Count(text="late"), Done, deadline_s=0.05)
        assert (await system.ask(address, Log(), Entries)).entries == ["block"]


async def test_asks_by_name_survive_a_restart_of_receiver(tmp_path: Path) -> None:
    async with (
        TestSystem(tmp_path) as head,
        TestSystem(tmp_path, node="other", join=head) as other,
    ):
        other.spawn("counter", WordCounter)
        await head.ask("counter", Count(text="x"), Done)
        other.kill("counter")
        asking = asyncio.create_task(head.ask("counter", Totals(), TotalsAre))
        await asyncio.sleep(0.1)
        other.spawn("counter", WordCounter)
        assert (await asking).words == {"x": 1}


async def test_ask_follows_name_when_dead_holder_was_never_dialled(tmp_path: Path) -> None:
    async with (
        TestSystem(tmp_path) as head,
        TestSystem(tmp_path, node="one", join=head) as one,
        TestSystem(tmp_path, node="two", join=head) as two,
    ):
        one.spawn("odd", Odd)
        await head.system.resolve("odd", 2.0)
        head.network.kill("one")  # no link to it was ever up, so no link goes down
        asking = asyncio.create_task(head.ask("odd", Log(), Entries, deadline_s=CONNECT_DEADLINE_S))
        two.system.incarnations.at_least(1000)
        two.spawn("odd", Odd)
        async with asyncio.timeout(CONNECT_DEADLINE_S / 2):  # sooner than the dead one is given up
            assert (await asking).entries == []


async def test_ask_ends_at_deadline_when_registry_is_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no reply comes, the ask looks up the present holder; the lookup must not outlast the ask's
    deadline."""
    left_s: list[float] = []

    async def silent(names: Names, address: Address, deadline_s: float) -> bool:
        left_s.append(deadline_s)
        await asyncio.sleep(deadline_s)
        return True

    monkeypatch.setattr(Names, "still_held", silent)
    async with (
        TestSystem(tmp_path) as head,
        TestSystem(tmp_path, node="one", join=head) as one,
    ):
        one.spawn("odd", Odd)
        await head.ask("odd", Log(), Entries)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(AskTimeout):
            await head.ask("odd", Block(seconds=2.0), Done, deadline_s=0.15)
        assert asyncio.get_running_loop().time() - began_s >= 0.15
    assert len(left_s) == 1  # at the deadline itself there are no more lookups
    assert left_s[0] <= 0.15 - 0.1 + 0.01  # the rest after the first re-send was due


async def test_ask_ends_with_its_reply_when_registry_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply arrives while the ask looks up the present holder."""
    looks: list[str] = []
    never = asyncio.Event()

    async def silent(names: Names, address: Address, deadline_s: float) -> bool:
        looks.append(address.name)
        await never.wait()
        return True

    monkeypatch.setattr(Names, "still_held", silent)
    async with (
        TestSystem(tmp_path) as head,
        TestSystem(tmp_path, node="one", join=head) as one,
    ):
        one.spawn("odd", Odd)
        await head.ask("odd", Log(), Entries)
        await head.ask("odd", Block(seconds=0.3), Done, deadline_s=60.0)
    assert looks == ["odd"]


async def test_ask_gets_its_reply_when_the_registry_names_no_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a restarted registry does until the processes claim their names anew; the receiver lives on."""
    async with (
        TestSystem(tmp_path) as head,
        TestSystem(tmp_path, node="one", join=head) as one,
    ):
        one.spawn("odd", Odd)
        await head.ask("odd", Log(), Entries)
        asked: list[str] = []

        def knows_none(leases: Leases, name: str, now: float) -> None:
            asked.append(name)

        monkeypatch.setattr(Leases, "find", knows_none)
        await head.ask("odd", Block(seconds=0.3), Done, deadline_s=5.0)
    assert "odd" in asked


async def test_ask_ends_at_deadline_when_the_registry_names_no_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        TestSystem(tmp_path) as head,
        TestSystem(tmp_path, node="one", join=head) as one,
    ):
        one.spawn("odd", Odd)
        await head.ask("odd", Log(), Entries)
        monkeypatch.setattr(Leases, "find", lambda leases, name, now: None)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(AskTimeout):
            await head.ask("odd", Block(seconds=2.0), Done, deadline_s=0.4)
        assert 0.4 <= asyncio.get_running_loop().time() - began_s < 1.0


async def test_ask_by_name_finds_successor_before_registry_does(
    tmp_path: Path,
) -> None:
    """The ask does not wait for its next re-send: the process that it was sent to is gone."""
    async with TestSystem(tmp_path) as head, TestSystem(tmp_path, node="one", join=head) as one:
        head.system.limits = replace(TEST_LIMITS, resend_s=60.0)
        old = one.spawn("odd", Odd)
        head.spawn("far", lambda: Watcher(old))
        await head.ask("odd", Log(), Entries)
        head.network.kill("one")
        async with asyncio.timeout(60):
            while not (await head.ask("far", Log(), Entries)).entries:  # head knows that the process is gone
                await asyncio.sleep(0.02)
        asked = asyncio.create_task(
            head.ask("odd", Count(text="found"), Done, deadline_s=0.8 * CONNECT_DEADLINE_S)
        )
        await asyncio.sleep(0.3)
        assert not asked.done()
        async with TestSystem(tmp_path, node="two", join=head) as two:
            two.system.incarnations.at_least(old.incarnation)
            two.spawn("odd", Odd)
            await asked
            assert (await head.ask("odd", Log(), Entries)).entries == ["found"]


async def test_resent_ask_takes_effect_once(tmp_path: Path) -> None:
    async with (
        TestSystem(tmp_path) as head,
        TestSystem(tmp_path, node="other", join=head) as other,
    ):
        address = other.spawn("odd", Odd)
        # three times the re-send period: the same ask arrives several times while it runs
        await head.ask(address, Block(seconds=TEST_LIMITS.resend_s * 3.5), Done)
        first = asyncio.create_task(
            head.system.ask(address, Count(text="once"), deadline_s=60, expect=Done, key="k1")
        )
        second = asyncio.create_task(
            head.system.ask(address, Count(text="once"), deadline_s=60, expect=Done, key="k1")
        )
        await asyncio.gather(first, second)
        assert (await head.ask(address, Log(), Entries)).entries == ["block", "once"]
        assert head.system.dead_letters.counts["reply: late"] == 0, "one answer for each asker"


async def test_ask_to_an_older_incarnation_is_unreachable(tmp_path: Path) -> None:
    async with (
        TestSystem(tmp_path) as head,
        TestSystem(tmp_path, node="other", join=head) as other,
    ):
        old = other.spawn("odd", Odd)
        other.kill("odd")
        other.spawn("odd", Odd)
        with pytest.raises(Unreachable):
            await head.ask(old, Log(), Entries)


async def test_watcher_is_notified_of_local_and_remote_crashes(tmp_path: Path) -> None:
    async with (
        TestSystem(tmp_path) as head,
        TestSystem(tmp_path, node="other", join=head) as other,
    ):
        target = other.spawn("odd", Odd)
        other.spawn("near", lambda: Watcher(target))
        head.spawn("far", lambda: Watcher(target))
        for name in ("near", "far"):
            await head.ask(name, Log(), Entries)
        async with asyncio.timeout(60):
            while not other.system.watches.watchers_of(target.name, target.incarnation):
                await asyncio.sleep(0.01)
        other.kill("odd")
        for name in ("near", "far"):
            async with asyncio.timeout(60):
                while not (entries := (await head.ask(name, Log(), Entries)).entries):
                    await asyncio.sleep(0.02)
            assert entries == [f"odd#{target.incarnation} crashed: RuntimeError: killed by the test"]


async def test_watcher_is_notified_of_dead_process_and_asks_fail(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as head:
        async with TestSystem(tmp_path, node="other", join=head) as other:
            target = other.spawn("odd", Odd)
            head.spawn("far", lambda: Watcher(target))
            await head.ask(target, Log(), Entries)
            waiting = asyncio.create_task(head.ask(target, Block(seconds=600), Done, deadline_s=600))
            await asyncio.sleep(0.2)
            head.network.kill("other")
            with pytest.raises(Unreachable):
                await asyncio.wait_for(waiting, 60)
            async with asyncio.timeout(60):
                while not (entries := (await head.ask("far", Log(), Entries)).entries):
                    await asyncio.sleep(0.02)
            assert entries[0].startswith(f"odd#{target.incarnation} ")


class Owner(Watcher):
    """Has its own child."""

    def __init__(self) -> None:
        self.seen: list[Terminated] = []

    async def on_start(self) -> None:
        self.ctx.spawn("child", Odd)


async def test_owned_actor_ends_with_owner_and_reports_its_end(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        system.spawn("owner", Owner)
        await system.ask("owner", Log(), Entries)
        with pytest.raises(Crashed):
            await system.ask("child", Fail(), Done)
        async with asyncio.timeout(60):
            while not (entries := (await system.ask("owner", Log(), Entries)).entries):
                await asyncio.sleep(0.01)
        assert entries[0].endswith("crashed: ValueError: on purpose")
        system.kill("owner")
        system.spawn("owner", Owner)
        await system.ask("owner", Log(), Entries)
        assert system.system.cell("child") is not None
        system.kill("owner")
        assert system.system.cell("child") is None


class Double(Owner):
    """Watches its child too, twice."""

    async def on_start(self) -> None:
        self.child = self.ctx.spawn("child", Odd)
        self.ctx.watch(self.child)
        self.ctx.watch(self.child)


async def test_end_of_a_watched_child_is_reported_once(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as system:
        double = Double()
        system.spawn("owner", lambda: double)
        await system.ask("owner", Log(), Entries)
        with pytest.raises(Crashed):
            await system.ask("child", Fail(), Done)
        async with asyncio.timeout(60):
            while not double.seen:
                await asyncio.sleep(0.01)
        for _ in range(3):
            await system.ask("owner", Log(), Entries)  # after everything else in flight
        assert [event.name for event in double.seen] == ["child"]


async def test_end_of_twice_watched_remote_actor_is_reported_once(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as head, TestSystem(tmp_path, node="far", join=head) as other:
        target = other.spawn("odd", Odd)
        watcher = Watcher(target)
        head.spawn("watcher", lambda: watcher)
        await head.ask("watcher", Log(), Entries)
        watcher.ctx.watch(target)
        await asyncio.sleep(0.1)
        other.kill("odd")
        async with asyncio.timeout(60):
            while not watcher.seen:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(watcher.seen) == 1


async def test_superseded_actor_ends_itself(tmp_path: Path) -> None:
    async with (
        TestSystem(tmp_path) as head,
        TestSystem(tmp_path, node="one", join=head) as one,
        TestSystem(tmp_path, node="two", join=head) as two,
    ):
        one.spawn("odd", Odd)
        await head.ask("odd", Log(), Entries)
        two.system.incarnations.at_least(1000)
        newer = two.spawn("odd", Odd)
        async with asyncio.timeout(60):
            while one.system.cell("odd") is not None:
                await asyncio.sleep(0.02)
        head.system.names.forget("odd")
        assert (await head.system.resolve("odd", 2.0)).incarnation == newer.incarnation
