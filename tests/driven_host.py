"""The host of a server, driven by a test without an event loop.

Its loop runs on a thread of its own.
"""

import asyncio
import threading

from gleaner.actors.engine.servers.host import RemoteHost
from gleaner.actors.engine.worker.port import StepCommands, StepResult

TURN_S = 120.0


class DrivenHost:
    """A `RemoteHost` whose turns are waited for."""

    def __init__(self, host: RemoteHost) -> None:
        self.host = host
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def turn(self, orders: StepCommands) -> StepResult:
        """The result of one turn; raises its exception."""
        return asyncio.run_coroutine_threadsafe(self.host.awaited_turn(orders), self._loop).result(TURN_S)

    def hurry(self) -> None:
        """Orders wait."""
        self._loop.call_soon_threadsafe(self.host.hurry)

    def close(self) -> None:
        """Close the connection to the server at once; a second call does nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.host.close)

    def joined(self, within_s: float) -> bool:
        """After `close`: whether nothing of it is left on its loop, which ends then."""
        if not self._thread.is_alive():
            return True

        async def over() -> bool:
            await self.host.closed()
            return asyncio.all_tasks() == {asyncio.current_task()}

        over_soon = asyncio.run_coroutine_threadsafe(over(), self._loop)
        try:
            return over_soon.result(within_s)
        except TimeoutError:
            return False
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(within_s)
            self._loop.close()
