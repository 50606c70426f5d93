"""`StallWatch`: the verdict that a server has stalled.

Owns the time of the last progress and of the last health check. A server that is given up is replaced by the
worker (`ServerDied`).
"""

import asyncio
from collections.abc import Awaitable, Callable

from gleaner.actors.engine.servers.port import ServerDied

LOOK_S = 0.25  # between two checks of token progress
HEALTH_SHARE = 4.0  # health checks within `stall_s`


def _now() -> float:
    return asyncio.get_running_loop().time()


class StallWatch:
    """Watches one server.

    Args:
        healthy: sends the server a health check; raises `ServerDied`.
        stall_s: so long without a token of executing requests, or without a reply to a health check.
    """

    def __init__(self, healthy: Callable[[], Awaitable[None]], stall_s: float) -> None:
        self._healthy, self._stall_s = healthy, stall_s
        self._progress_s = 0.0  # time of the last token, or of the last moment without a due token

    def progress(self) -> float:
        """A token came, or none is due. Returns the time."""
        self._progress_s = _now()
        return self._progress_s

    async def watch(self, requests: Callable[[], int | None]) -> None:
        """Raises `ServerDied` if the server stalls. It gets health checks, also when idle. If a check is
        late, our own process was stopped for that time, so it is not counted as the server's silence.

        Args:
            requests: number of requests in the server; None while it loads, which has a deadline of its own.
        """
        share_s = self._stall_s / HEALTH_SHARE
        healthy_s = asked_s = _now()
        while True:
            due_s = _now() + LOOK_S
            await asyncio.sleep(LOOK_S)
            now = _now()
            self._progress_s += now - due_s
            healthy_s += now - due_s
            count = requests()
            if count is None:
                healthy_s = self._progress_s = now
                continue
            if not count:
                self._progress_s = now
            if (late_s := now - self._progress_s) > self._stall_s:
                raise ServerDied(
                    f"{count} requests are in the server and no token came for {late_s:.1f} s "
                    f"(engine.stall_s is {self._stall_s:g})"
                )
            if now - asked_s < share_s:
                continue
            asked_s = now
            try:
                async with asyncio.timeout(share_s):
                    await self._healthy()
                healthy_s = _now()
            except TimeoutError as late:
                stopped_s = _now() - asked_s - share_s
                self._progress_s += stopped_s
                healthy_s += stopped_s
                if (late_s := _now() - healthy_s) > self._stall_s:
                    raise ServerDied(f"the server did not answer for {late_s:.1f} s") from late
