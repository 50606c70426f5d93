"""CuttingProxy in front of a source: breaks each connection after given bytes.

It ends connections alternately in order and by a reset."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

PIECE = 16 * 1024


class CuttingProxy:
    """`points`: the bytes from the source after which one connection after the other is cut.

    Later connections stay whole. `cuts`: the number of cuts made."""

    def __init__(self, endpoint: str, points: Iterable[int]) -> None:
        self._to = endpoint.removeprefix("tcp://").rsplit(":", 1)
        self._points = iter(points)
        self.cuts = 0
        self.endpoint = ""

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = next(self._points, None)
        host, port = self._to
        source, asks = await asyncio.open_connection(host, int(port))
        asking = asyncio.create_task(_pump(reader, asks))
        try:
            while data := await source.read(PIECE if left is None else min(PIECE, left or 1)):
                if left == 0:
                    break
                writer.write(data)
                await writer.drain()
                left = left if left is None else left - len(data)
                if left == 0:
                    break
        except ConnectionError:
            left = None  # the puller closed the connection
        asking.cancel()
        asks.close()
        if left == 0:
            self.cuts += 1
            if self.cuts % 2:
                writer.transport.abort()
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(PIECE):
        writer.write(data)


@asynccontextmanager
async def cutting(endpoint: str, points: Iterable[int]) -> AsyncIterator[CuttingProxy]:
    proxy = CuttingProxy(endpoint, points)
    server = await asyncio.start_server(proxy.pass_on, "127.0.0.1", 0)
    proxy.endpoint = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
