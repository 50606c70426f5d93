"""`RunningPull`: a running pull that a better source or a newer version can end.

Owns the periodic requests for another source, and the end of an abandoned pull. Received chunks stay;
`fetch` chooses the next payload and source.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from gleaner.actors.weights.transfer.source_lookup import ASK_AGAIN_S, ASK_SOON_S


class SourceChanged(Exception):
    """There is a better source now."""


class Superseded(Exception):
    """A newer version is wanted instead."""


class RunningPull:
    """A pull from one source.

    Args:
        other_than: requests another source than this one; "" if there is none.
        may_change: whether there can be another source than this one.
        pulled_bytes: bytes pulled so far.
    """

    def __init__(
        self,
        other_than: Callable[[str], Awaitable[str]],
        may_change: Callable[[str], bool],
        pulled_bytes: Callable[[], int],
    ) -> None:
        self._other_than, self._may_change, self._pulled_bytes = other_than, may_change, pulled_bytes
        self._pulling: asyncio.Future[None] | None = None
        self.newer: int | None = None

    def overtake(self, version: int) -> None:
        """End the pull, because that version is wanted instead."""
        self.newer = version
        if self._pulling is not None:
            self._pulling.cancel()

    async def finish(self, source: str, work: Coroutine[object, object, None]) -> None:
        """Pull everything that is wanted from this source, unless another one is assigned or a newer version
        is wanted meanwhile. No byte is written after this has ended. Raises `SourceChanged`, `Superseded`."""
        pulling = self._pulling = asyncio.ensure_future(work)
        had_bytes = self._pulled_bytes()
        turn_s = ASK_AGAIN_S if self._may_change(source) else None
        try:
            while not (await asyncio.wait([pulling], timeout=turn_s))[0]:
                turn_s = ASK_AGAIN_S if self._pulled_bytes() > had_bytes else ASK_SOON_S
                had_bytes = self._pulled_bytes()
                if (other := await self._other_than(source)) and not pulling.done():
                    raise SourceChanged(f"{source} is left for {other}")
            if pulling.cancelled():
                raise Superseded
            pulling.result()
        finally:
            self._pulling = None
            pulling.cancel()
            await asyncio.wait([pulling])
            del pulling  # its exception refers to this frame: a cycle would hold the image's memory
