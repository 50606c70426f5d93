"""A pull while it is under way: what ends it before it is done, a better source or a newer version.

Owns the questions for another source, in turns, and the end of a pull that is left. What has come stays; what
is pulled, and from whom next, is `fetching`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from actors.weights.finding import ASK_AGAIN_S, ASK_SOON_S


class Moved(Exception):
    """There is a better source by now."""


class Overtaken(Exception):
    """A newer version is wanted instead."""


class UnderWay:
    """See the module.

    Args:
        other_than: asks for another source than this one; "" where there is none.
        pulled_bytes: by now.
    """

    def __init__(self, other_than: Callable[[str], Awaitable[str]], pulled_bytes: Callable[[], int]) -> None:
        self._other_than, self._pulled_bytes = other_than, pulled_bytes
        self._pulling: asyncio.Future[None] | None = None
        self.newer: int | None = None

    def overtake(self, version: int) -> None:
        """That version is wanted instead: what is under way ends."""
        self.newer = version
        if self._pulling is not None:
            self._pulling.cancel()

    async def finish(self, source: str, work: Coroutine[object, object, None]) -> None:
        """All that is pulled from this source, unless another one is named or a newer version wanted
        meanwhile. Nothing is written any more when this has ended. Raises `Moved`, `Overtaken`."""
        pulling = self._pulling = asyncio.ensure_future(work)
        had_bytes, turn_s = self._pulled_bytes(), ASK_AGAIN_S
        try:
            while not (await asyncio.wait([pulling], timeout=turn_s))[0]:
                turn_s = ASK_AGAIN_S if self._pulled_bytes() > had_bytes else ASK_SOON_S
                had_bytes = self._pulled_bytes()
                if (other := await self._other_than(source)) and not pulling.done():
                    raise Moved(f"{source} is left for {other}")
            if pulling.cancelled():
                raise Overtaken
            pulling.result()
        finally:
            self._pulling = None
            pulling.cancel()
            await asyncio.wait([pulling])
