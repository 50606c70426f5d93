"""PartialContent: content that a host serves to others while it still pulls it.

Owns which chunks have arrived, and the wait for a missing one. The puller of the content reports verified
chunks; a `BulkServer` queries them. Nothing is read from memory here.
"""

import asyncio

# a missing chunk is waited for this long, then answered "not yet": less than a puller's stall limit
ARRIVE_S = 0.5


class PartialContent:
    """`view`: memory of the whole content; only the ranges in `landed` are ever served."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self._nbytes = len(view)
        self._landed: dict[int, int] = {}  # offset: length
        self._ended = False
        self._news: asyncio.Future[None] | None = None

    def fits(self, offset: int, length: int) -> bool:
        """Whether the content has such a range, arrived or not."""
        return length >= 1 and offset + length <= self._nbytes

    def landed(self, offset: int, length: int) -> None:
        """This chunk is there, and right."""
        self._landed[offset] = length
        self._tell()

    def end(self) -> None:
        """No more chunks will arrive: release all waiters at once."""
        self._ended = True
        self._tell()

    async def comes(self, offset: int, length: int) -> bool:
        """Whether this range is inside one landed chunk, now or within `ARRIVE_S`."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + ARRIVE_S
        while not self.there(offset, length):
            left_s = until_s - loop.time()
            if self._ended or left_s <= 0:
                return False
            if self._news is None or self._news.done():
                self._news = loop.create_future()
            await asyncio.wait([self._news], timeout=left_s)
        return True

    def there(self, offset: int, length: int) -> bool:
        """Whether this range is inside one landed chunk, to be served now. Any thread may call this."""
        return not self._ended and self._landed.get(offset, 0) >= length

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
