"""`Absence`: downtime of another actor, from one life's death to the next reply.

Owns the watch on the holder of a name and the sum of the seconds without one. The caller decides what the sum
means. Nothing counts before the first life was seen: what has not started yet is no death.
"""

import asyncio

from gleaner.supervisor import AskFailed, Context, Message, Overloaded, Refused, Suspended, Terminated

ANSWER_S = 60.0  # one check whether a new life answers; an actor that replays its journal takes seconds
AGAIN_S = 0.5  # between two checks while the name has no holder


class Absence:
    """Downtime of the holder of a name. Run `follow` in the background, and pass every `Terminated` to
    `terminated`.

    Args:
        name: the actor's.
        question: what it answers at once when it is up; a refusal is an answer too.
        away: it was up before, so that until it answers it is away.
    """

    def __init__(self, ctx: Context, name: str, question: Message, *, away: bool = False) -> None:
        self._ctx, self._name, self._question = ctx, name, question
        self._watched = 0  # the incarnation
        self._ended = asyncio.Event()
        self._since_s = ctx.now() if away else None  # while it is away
        self._before_s = 0.0  # of the absences that are over

    def total_s(self) -> float:
        """Seconds away so far, the absence of now included; it never falls."""
        return self._before_s + (0.0 if self._since_s is None else self._ctx.now() - self._since_s)

    def terminated(self, message: Terminated) -> None:
        """A watched life has ended; one of another actor is passed over."""
        if message.name == self._name and message.incarnation == self._watched:
            if self._since_s is None:
                self._since_s = self._ctx.now()
            self._ended.set()

    async def follow(self) -> None:
        """Watch one life after the other, without end."""
        while True:
            try:
                await self._answered()
                holder = await self._ctx.resolve(self._name, ANSWER_S)
            except AskFailed:
                await asyncio.sleep(AGAIN_S)
                continue
            if self._since_s is not None:
                self._before_s, self._since_s = self.total_s(), None
            self._ended.clear()
            self._watched = holder.incarnation
            self._ctx.watch(holder)
            await self._ctx.idle(self._ended)

    async def _answered(self) -> None:
        """Raises `AskFailed` if there is no answer."""
        try:
            await self._ctx.ask(self._name, self._question, deadline_s=ANSWER_S, expect=Message)
        except (Refused, Overloaded, Suspended):
            return  # it is alive, even if it refuses the question
