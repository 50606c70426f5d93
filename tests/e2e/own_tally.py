"""A user's own actor for tests: it sums its messages, also over its own deaths."""

from gleaner.supervisor import Actor, Message, handles


class AddToTally(Message, frozen=True):
    amount: int


class TallyIs(Message, frozen=True):
    total: int
    life: int


class Tally(Actor):
    async def on_start(self) -> None:
        self.total = 0
        async for event in self.ctx.journal.replay():
            assert isinstance(event, AddToTally)
            self.total += event.amount

    @handles(AddToTally)
    async def add(self, message: AddToTally) -> TallyIs:
        await self.ctx.journal.append(message)
        self.total += message.amount
        return TallyIs(total=self.total, life=self.ctx.incarnation)
