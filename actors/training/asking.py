"""Asks of those whose work must not be lost because somebody else has too much to do for a moment.

Owns the pauses. A full mailbox answers `Overloaded` at once, so that whoever asks decides what that means:
for a job in the middle of a step it means later, with ever longer pauses in which the mailbox can drain.
"""

import asyncio
from typing import TypeVar

from supervisor import Context, Deadline, Message, Overloaded

R = TypeVar("R", bound=Message)

FIRST_PAUSE_S = 0.1  # a mailbox of a thousand messages is emptied in about that time
LONGEST_PAUSE_S = 5.0


async def ask_patiently(
    ctx: Context, to: str, message: Message, *, expect: type[R], deadline_s: float, patience_s: float
) -> R:
    """Ask; where the receiver has too much to do, say so and ask again.

    deadline_s: of each ask. patience_s: from now; who is overloaded then still is an `Overloaded`.

    Raises: what `ctx.ask` raises.
    """
    until, pause_s = Deadline.after(patience_s, ctx.now()), FIRST_PAUSE_S
    while True:
        try:
            return await ctx.ask(to, message, deadline_s=deadline_s, expect=expect)
        except Overloaded as problem:
            if until.passed(ctx.now()):
                raise
            ctx.log.warning("asked again in %.1f s: %s", pause_s, problem)
        async with ctx.wait("room in a mailbox", on=to, deadline_s=2 * LONGEST_PAUSE_S, go_on=True):
            await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
