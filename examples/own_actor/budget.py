"""An actor that grants GPU hours from a budget, and never grants one twice.

    python examples/own_actor/budget.py state

Run it several times with the same folder: the budget goes on where it was. A grant is journaled before it is
answered, so neither a crash of the actor nor SIGKILL of the process loses one.
"""

import asyncio
import sys

from gleaner.supervisor import Actor, Crashed, Intensity, Message, Refused, child, handles, one_for_one
from gleaner.supervisor.standalone import open_system, supervise

HOURS = 10


class Spend(Message, frozen=True):
    """Ask for GPU hours."""

    hours: int


class Left(Message, frozen=True):
    """The answer: hours that are left."""

    hours: int


class Budget(Actor):
    """Grants `Spend` while there are hours left."""

    async def on_start(self) -> None:
        self.left = HOURS
        async for event in self.ctx.journal.replay():  # grants of earlier incarnations
            assert isinstance(event, Spend)
            self.left -= event.hours

    @handles(Spend)
    async def spend(self, message: Spend) -> Left:
        if message.hours < 0:
            raise ValueError("negative hours")  # a defect: the supervisor restarts the actor
        if message.hours > self.left:
            raise Refused(f"{message.hours} hours are more than the {self.left} that are left")
        if message.hours:
            await self.ctx.journal.append(message)
        self.left -= message.hours
        return Left(hours=self.left)


async def main(folder: str) -> None:
    """Spend, crash the actor, and ask what is left."""
    tree = one_for_one(child("budget", Budget), intensity=Intensity(restarts=3, within_s=10))
    async with open_system("demo", folder) as system, supervise(system, tree):
        for hours in (4, -1, 0):
            try:
                left = await system.ask("budget", Spend(hours=hours), deadline_s=5, expect=Left)
                print(f"spend {hours}: {left.hours} left")
            except Crashed:
                print(f"spend {hours}: the actor crashed and was restarted")
            except Refused as problem:
                print(f"spend {hours}: {problem}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
