"""Unneeded work: the end of what a worker computes when all items of it were cancelled."""

import asyncio
from collections.abc import Awaitable, Sequence

from gleaner.actors.reward import pipe
from gleaner.actors.reward.scoring_queue import ScoringItem

ENDS_S = 0.5
"""For so long a worker may end items that are cancelled: most take milliseconds, and another worker takes
longer to start."""


class NotNeeded(Exception):
    """No caller waits for what a worker computes: kill the worker."""


async def while_needed(answer: Awaitable[pipe.Answer], items: Sequence[ScoringItem]) -> pipe.Answer:
    """The answer of a worker for these items. Raises `NotNeeded` where it is not there `ENDS_S` after the
    last of them was cancelled."""
    try:
        async with asyncio.timeout(None) as limit:

            def left() -> None:
                if all(item.done.cancelled() for item in items):
                    limit.reschedule(asyncio.get_running_loop().time() + ENDS_S)

            for item in items:
                item.left = left
            try:
                return await answer
            finally:
                for item in items:
                    item.left = None
    except TimeoutError:
        if limit.expired():
            raise NotNeeded from None
        raise
