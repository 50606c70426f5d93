"""HttpListening: the gateway's HTTP server on the simulated network.

Implements `gleaner.actors.gateway.server.Listening`. Owns the bytes between a simulated connection and
aiohttp's protocol: the server above them, its routes, limits and event streams are production code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

from aiohttp import web

from gleaner.sim.network import SimNet
from gleaner.sim.network_path import Station
from gleaner.sim.network_tcp import SimBulkListener, SimConnection

PIECE_BYTES = 512
"""Of an answer on its way at a time: a window so small that a reader who stops fills it within one answer."""
HIGH_BYTES, LOW_BYTES = 2048, 512
"""Unsent bytes at which the server waits for its reader, and at which it goes on."""


class HttpListening:
    """See the module.

    Args:
        station: of the gateway's process. wall_s: its clock, for the date of answers.
    """

    def __init__(self, net: SimNet, station: Station, wall_s: Callable[[], float]) -> None:
        self._net, self._station, self._wall_s = net, station, wall_s
        self._listener: SimBulkListener | None = None

    def prepare(self, app: web.Application) -> None:
        """See `Listening`."""
        app.on_response_prepare.append(self._date)
        app.on_shutdown.append(self._close)

    async def listen(self, runner: web.AppRunner, host: str, port: int) -> int:
        """See `Listening`; `host` is any name of this host."""
        bind = f"tcp://{self._station.host.address}:{port}"
        self._listener = SimBulkListener(self._net, self._station, bind, 1.0, PIECE_BYTES)
        self._listener.open()
        self._station.process.create_task(self._accept(self._listener, runner))
        return int(self._listener.endpoint.rpartition(":")[2])

    async def _accept(self, listener: SimBulkListener, runner: web.AppRunner) -> None:
        while True:
            connection, address = await listener.accept()
            if runner.server is None:
                connection.close()
                return
            HttpTransport(connection, runner.server(), self._station.process, address).start()

    async def _date(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """The date by the simulated clock; aiohttp would read the machine's."""
        response.headers["Date"] = formatdate(self._wall_s(), usegmt=True)

    async def _close(self, app: web.Application) -> None:
        if self._listener is not None:
            self._listener.close()


class HttpTransport(asyncio.Transport):
    """One connection of a server: asyncio's transport over a simulated connection."""

    def __init__(
        self,
        connection: SimConnection,
        protocol: asyncio.Protocol,
        process: asyncio.AbstractEventLoop,
        address: str,
    ) -> None:
        super().__init__({"peername": (address, 0)})
        self._connection, self._protocol, self._process = connection, protocol, process
        self._unsent = bytearray()
        self._paused = self._closing = self._lost = False
        self._more = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()

    def start(self) -> None:
        """The connection is made: read and write from now on."""
        self._protocol.connection_made(self)
        self._reader = self._process.create_task(self._read_all())
        self._writer = self._process.create_task(self._write_all())

    # -- asyncio.Transport --

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """See asyncio."""
        if self._lost or not data:
            return
        self._unsent += data
        self._more.set()
        if len(self._unsent) > HIGH_BYTES and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return len(self._unsent)

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._closing

    def close(self) -> None:
        """See asyncio: what is written is still sent."""
        self._closing = True
        self._more.set()

    def abort(self) -> None:
        """See asyncio."""
        self._closing = True
        self._end(None)

    def pause_reading(self) -> None:
        """See asyncio."""
        self._reading.clear()

    def resume_reading(self) -> None:
        """See asyncio."""
        self._reading.set()

    def is_reading(self) -> bool:
        """See asyncio."""
        return self._reading.is_set()

    # -- bytes --

    async def _read_all(self) -> None:
        try:
            while not self._closing:
                data = await self._connection.read()
                await self._reading.wait()
                if not data:
                    self._protocol.eof_received()
                    self.close()
                elif not self._closing:
                    self._protocol.data_received(data)
        except OSError as problem:
            self._end(problem)

    async def _write_all(self) -> None:
        try:
            while self._unsent or not self._closing:
                if not self._unsent:
                    self._more.clear()
                    await self._more.wait()
                    continue
                piece = bytes(self._unsent[:PIECE_BYTES])
                await self._connection.write(piece)
                del self._unsent[: len(piece)]
                if self._paused and len(self._unsent) <= LOW_BYTES:
                    self._paused = False
                    self._protocol.resume_writing()
        except OSError as problem:
            self._end(problem)
        else:
            self._end(None)

    def _end(self, problem: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._unsent.clear()
        self._more.set()
        self._connection.close()
        self._process.call_soon(self._protocol.connection_lost, problem)
