"""A TCP proxy that forwards bytes in small segments with a pause after each.

Slow networks and other proxies do so: bytes of one write arrive in many reads.
"""

import asyncio
import contextlib
import socket
import threading
from types import TracebackType
from urllib.parse import urlsplit

SEGMENT_BYTES = 8192
PAUSE_S = 0.002
START_S = 30.0


class SegmentingProxy:
    """In front of one HTTP server. A context manager; runs on a thread of its own, so that tests with and
    without an event loop can use it.

    Args:
        target: "http://host:port" of the server.
        segment_bytes: the most that one segment has.
        pause_s: after each segment.
    """

    def __init__(self, target: str, segment_bytes: int = SEGMENT_BYTES, pause_s: float = PAUSE_S) -> None:
        at = urlsplit(target)
        assert at.hostname is not None, target
        assert at.port is not None, target
        self._host, self._port = at.hostname, at.port
        self._segment_bytes, self._pause_s = segment_bytes, pause_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="segmenting-proxy", daemon=True)
        self._started = threading.Event()
        self._over = asyncio.Event()
        self.url = ""
        self.segments = 0
        """The segments in which the server's answers were forwarded."""
        self.largest = 0
        """Bytes of the largest one."""

    def __enter__(self) -> "SegmentingProxy":
        self._thread.start()
        assert self._started.wait(START_S), "the proxy did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(START_S)
        assert not self._thread.is_alive(), "the proxy did not end"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._calls: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._started.set()
        await self._over.wait()
        server.close()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = self._loop.create_task(self._call(reader, writer))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            try:
                there, back = await asyncio.open_connection(self._host, self._port)
            except OSError:  # the server is away: the client's connection is cut, as a dead server's is
                writer.transport.abort()
                return
            try:
                await self._join(reader, writer, there, back)
            finally:
                back.close()
                writer.close()

    async def _join(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        back: asyncio.StreamWriter,
    ) -> None:
        """Forward until either side closes, which closes the other."""
        both = [
            asyncio.ensure_future(self._pass_on(reader, back, counted=False)),
            asyncio.ensure_future(self._pass_on(there, writer, counted=True)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in both:
                direction.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counted: bool
    ) -> None:
        sink.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := await source.read(self._segment_bytes):
            sink.write(data)
            await sink.drain()
            if counted:
                self.segments += 1
                self.largest = max(self.largest, len(data))
            await asyncio.sleep(self._pause_s)
