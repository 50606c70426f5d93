"""Stage: one actor on virtual time, whose outgoing messages the test handles."""

import pytest

from gleaner.supervisor import Actor, Crashed, Done, Message, Refused, Terminated, Unreachable, handles
from gleaner.supervisor.actor_test_kit import ActorTestKit
from gleaner.supervisor.journal.memory import MemoryJournal
from gleaner.supervisor.virtual_time import Stalled, VirtualLoop


class PriceOf(Message, frozen=True):
    item: str


class Price(Message, frozen=True):
    cents: int


class Sold(Message, frozen=True):
    item: str
    cents: int


class Closing(Message, frozen=True):
    pass


PATIENCE_S = 1800.0
"""Longer than any test may take in real time."""


class Shop(Actor):
    """Sells goods that the market has a price for; closes after an hour."""

    async def on_start(self) -> None:
        self.sold = 0
        async for _ in self.ctx.journal.replay():
            self.sold += 1
        self.ctx.after(3600.0, Closing())

    @handles(PriceOf)
    async def sell(self, message: PriceOf) -> Price:
        price = await self.ctx.ask("market", message, deadline_s=PATIENCE_S, expect=Price)
        if price.cents == 0:
            raise Refused(f"no price for {message.item}")
        await self.ctx.journal.append(Sold(item=message.item, cents=price.cents))
        self.sold += 1
        return price

    @handles(Closing)
    async def close(self, message: Closing) -> None:
        await self.ctx.tell("market", message)


def test_answers_of_others_are_given_by_the_test() -> None:
    with ActorTestKit(Shop) as stage:
        stage.answer(PriceOf, lambda asked: Price(cents=len(asked.item)))
        assert stage.ask(PriceOf(item="bread"), Price).cents == 5
        stage.answer(PriceOf, Price(cents=0))
        with pytest.raises(Refused, match="no price for bread"):
            stage.ask(PriceOf(item="bread"), Price)


def test_unanswered_ask_reaches_its_deadline_without_real_time() -> None:
    with ActorTestKit(Shop) as stage:
        with pytest.raises(Crashed, match="AskTimeout: PriceOf to market"):
            stage.ask(PriceOf(item="bread"), Price, deadline_s=10 * PATIENCE_S)
        assert PATIENCE_S <= stage.now_s < PATIENCE_S + 1.0


def test_timers_fire_when_virtual_time_advances() -> None:
    with ActorTestKit(Shop) as stage:
        stage.advance(3599.0)
        assert stage.told == []
        stage.advance(2.0)
        assert stage.told == [("market", Closing())]


def test_life_begins_where_journal_of_last_one_ends() -> None:
    journal = MemoryJournal()
    with ActorTestKit(Shop, journal=journal) as stage:
        stage.answer(PriceOf, Price(cents=3))
        stage.ask(PriceOf(item="bread"), Price)
        stage.crash()
        assert isinstance(stage.actor, Shop)
        assert stage.actor.sold == 1
        assert [exit_.cause for exit_ in stage.exits] == ["crashed: RuntimeError: crashed by the test"]
    with ActorTestKit(Shop, journal=journal) as stage:
        assert isinstance(stage.actor, Shop)
        assert stage.actor.sold == 1


def test_full_disk_crashes_the_life_that_meets_it() -> None:
    with ActorTestKit(Shop) as stage:
        stage.answer(PriceOf, Price(cents=3))
        stage.journal.full = True
        with pytest.raises(Unreachable):
            stage.ask(PriceOf(item="bread"), Price)
        with pytest.raises(Crashed, match="JournalFull"):
            stage.tell(Closing())


def test_stalled_virtual_loop_raises() -> None:
    loop = VirtualLoop()
    with pytest.raises(Stalled):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_unknown_message_is_refused() -> None:
    with ActorTestKit(Shop) as stage, pytest.raises(Refused, match="does not handle Price"):
        stage.ask(Price(cents=1), Done)


class Weigh(Message, frozen=True):
    item: str


class Weight(Message, frozen=True):
    grams: int


class Scales(Actor):
    @handles(Weigh)
    async def weigh(self, message: Weigh) -> Weight:
        if message.item == "anvil":
            raise ValueError("too heavy")
        return Weight(grams=100)


class Post(Actor):
    """Has its own scales, and asks strangers for prices."""

    async def on_start(self) -> None:
        self.ended: list[str] = []
        self.scales = self.ctx.spawn("scales", Scales)

    @handles(Weigh)
    async def weigh(self, message: Weigh) -> Weight:
        await self.ctx.ask("market", PriceOf(item=message.item), deadline_s=1.0, expect=Price)
        return await self.ctx.ask(self.scales, message, deadline_s=1.0, expect=Weight)

    async def on_terminated(self, event: Terminated) -> None:
        self.ended.append(f"{event.name} {event.cause}")
        self.scales = self.ctx.spawn("scales", Scales)


def test_children_run_on_the_stage_and_strangers_are_faked() -> None:
    with ActorTestKit(Post) as stage:
        stage.answer(PriceOf, Price(cents=5))
        assert stage.ask(Weigh(item="letter"), Weight).grams == 100
        assert stage.told == []


def test_child_crash_on_the_stage_is_reported_to_parent() -> None:
    class Careful(Post):
        @handles(Weigh)
        async def weigh(self, message: Weigh) -> Weight:
            try:
                return await self.ctx.ask(self.scales, message, deadline_s=1.0, expect=Weight)
            except Crashed as problem:
                raise Refused(str(problem)) from problem

    with ActorTestKit(Careful) as stage:
        with pytest.raises(Refused, match="ValueError: too heavy"):
            stage.ask(Weigh(item="anvil"), Weight)
        stage.advance(0.01)
        assert isinstance(stage.actor, Careful)
        assert stage.actor.ended == ["scales crashed: ValueError: too heavy"]
        assert stage.ask(Weigh(item="letter"), Weight).grams == 100


def test_unhandled_crash_of_an_asked_child_ends_its_parent() -> None:
    with ActorTestKit(Post) as stage:
        stage.answer(PriceOf, Price(cents=5))
        with pytest.raises(Crashed, match="Crashed: scales.*ValueError: too heavy"):
            stage.ask(Weigh(item="anvil"), Weight)
