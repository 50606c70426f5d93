"""`RetryingAsk`: requests that are retried while the receiver is overloaded.

Owns the pauses. A full mailbox answers `Overloaded` at once, so the caller decides what that means. For a job
in the middle of a step it means to retry, with ever longer pauses in which the mailbox can drain.
"""

import asyncio
from typing import TypeVar

from gleaner.supervisor import Context, Deadline, Message, Overloaded, Suspended

R = TypeVar("R", bound=Message)

SUSPENDED_S = 3600.0  # for an operator to make space on a full disk; then the job fails, and can be resumed

FIRST_PAUSE_S = 0.1  # a mailbox of a thousand messages is emptied in about that time
LONGEST_PAUSE_S = 5.0


async def ask_patiently(
    ctx: Context, to: str, message: Message, *, expect: type[R], deadline_s: float, patience_s: float
) -> R:
    """Ask; while the receiver is overloaded, log that and ask again.

    deadline_s: of each ask. patience_s: from now; a receiver that is still overloaded then raises
    `Overloaded`.

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


class RetryingAsk:
    """The asks of a job. `waits_for`: the receiver that accepts nothing now, and why; "" for none.

    Args:
        successor_s: for a reply, also if another process must replace the receiver.
    """

    def __init__(self, ctx: Context, successor_s: float) -> None:
        self._ctx = ctx
        self._successor_s = successor_s
        self.waits_for = ""

    async def ask(self, to: str, message: Message, expect: type[R], at_least_s: float = 0.0) -> R:
        """Ask; wait for a receiver that accepts nothing now (for example a full disk or a full queue), and
        name it. `at_least_s`: for a reply that may take longer than a successor.

        Raises: what `ctx.ask` raises; `Suspended` and `Overloaded` after `SUSPENDED_S`.
        """
        until = Deadline.after(SUSPENDED_S, self._ctx.now())
        while True:
            try:
                reply = await ask_patiently(
                    self._ctx,
                    to,
                    message,
                    expect=expect,
                    deadline_s=max(self._successor_s, at_least_s),
                    patience_s=SUSPENDED_S,
                )
            except Suspended as problem:
                if until.passed(self._ctx.now()):
                    raise
                self._ctx.log.warning("the job waits: %s", problem)
                self.waits_for = str(problem)
            else:
                self.waits_for = ""
                return reply
