"""`BuiltinEntry`: the builtin engine's server inside a process that has other things to do.

Owns its socket and its task. Adapter: sockets, torch.
"""

import asyncio
import socket
from collections.abc import Callable

from gleaner.actors.engine.builtin_server.process import Settings, serve

CLOSE_S = 4.0
"""For requests under way to end, and answers to be written; then it is cancelled."""


class BuiltinEntry:
    """See `model_server.Entry`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def start(self, ready: Callable[[str], None]) -> None:
        """See `Entry`."""
        sock = socket.socket(socket.AF_INET6 if ":" in self._settings.host else socket.AF_INET)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self._settings.host, self._settings.port))
        except OSError:
            sock.close()
            raise
        stop = self._stop.wait
        self._serving = asyncio.create_task(serve(self._settings, sock, ready, stop, stop))
        await asyncio.shield(self._serving)  # `close` ends it in order

    async def close(self) -> None:
        """See `Entry`."""
        self._stop.set()
        if self._serving is not None:
            _, late = await asyncio.wait([self._serving], timeout=CLOSE_S)
            for serving in late:
                serving.cancel()
