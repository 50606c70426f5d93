"""`SupervisedServer`: the process of the server behind a wire, own child or external.

Owns the child from its start to its end, the folder that it reads, and the report of its death. The wire owns
the protocol. Adapter: processes, files, HTTP.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from gleaner.actors.engine.images.checkpoint_folder import ServedFolder
from gleaner.actors.engine.servers.http import CALL_S, HttpWire
from gleaner.actors.engine.servers.port import ServerDied, ServerRefused
from gleaner.actors.engine.servers.server_process import ServerProcess
from gleaner.actors.protocol.weights import Fetched

LOOK_S = 0.2  # between two readiness checks of a starting server

Start = Callable[[Path, Fetched, Path], ServerProcess]
"""Starts a server of a model's folder, for these weights, with a file for its log."""


class SupervisedServer:
    """The server of one wire.

    Args:
        http: to the server; closed with it.
        start: starts it; None for an external server.
        health_s: longest wait for an answer to `/health` while it starts.
    """

    def __init__(self, http: HttpWire, start: Start | None, health_s: float = CALL_S) -> None:
        self.folder = ServedFolder()
        self._http, self._start, self._health_s = http, start, health_s
        self._process: ServerProcess | None = None
        self._closed = False

    @property
    def ours(self) -> bool:
        """Whether this host alone uses it."""
        return self._start is not None

    @property
    def pid(self) -> int | None:
        """Process id of a running server of ours."""
        return None if self._process is None else self._process.pid

    async def begin(self, fetched: Fetched, *, weights: bool) -> bool:
        """Start it on the folder of these weights, or of their model alone, and wait until it is ready; False
        if it is external or runs already. Raises `ServerDied`."""
        if self._start is None or self._process is not None:
            return False
        folder = await asyncio.to_thread(self.folder.write, fetched, weights=weights)
        if self._closed:
            raise ServerDied("its host was closed")
        self._process = process = self._start(folder, fetched, self.folder.log())
        while True:
            process.require_alive()
            try:
                await self._http.look("/health", self._health_s)
                return True
            except (ServerDied, ServerRefused):  # it does not listen yet, or is still starting
                await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Raises `ServerDied` if it was ours and ended; keeps its log within bounds."""
        if self._process is not None:
            self._process.require_alive()
            self._process.trim_log()

    def cause(self, died: ServerDied) -> ServerDied:
        """How the process ended, if it did, which explains more than a broken connection."""
        try:
            self.look()
        except ServerDied as ended:
            return ended
        return died

    def close(self) -> None:
        """End it at once if it is ours; any number of times."""
        self._closed = True
        if self._process is not None:
            self._process.kill()

    async def disconnect(self) -> None:
        """Close the connections; end it if it is ours, and remove its folder."""
        await self._http.close()
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.reap)
        await asyncio.to_thread(self.folder.remove)
