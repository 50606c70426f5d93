"""Fake worker behind the router: writes prepared events and generates nothing.

`python -m bench.token_plane.fake_worker PORT BURST`. An event is one token in SGLang's form, a chunk of HTTP
of its own. `BURST` of them go to the socket at a time; a request whose `rid` is `every N ms` gets one in that
time instead. Either way the writer waits while the socket is full. The only field that is written at run time
is the time of sending.
"""

import asyncio
import re
import socket
import sys
import time
from typing import cast

import uvloop

VARIANTS = 64
SEND_BUFFER_BYTES = 64 * 1024
"""Of a stream; the kernel's default takes megabytes of each, and the bench would measure how they fill."""
STAMP = b"1%017d"  # of one width, without a leading zero
STAMP_ZERO = 10**17
_EVERY = re.compile(rb'"rid": ?"every ([0-9.]+) ms"')
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"


def event(variant: int) -> tuple[bytes, bytes]:
    """A chunk with one event, without the time of sending: the bytes before it, and after it."""
    token, logprob = (977 * variant) % 150_000, -0.01 * (variant + 1)
    before = (
        b'data: {"text":"","output_ids":[%d],"meta_info":{"id":"0123456789abcdef","finish_reason":null,'
        % token
    )
    before += b'"prompt_tokens":64,"completion_tokens":%d,"cached_tokens":0,"sent_ns":' % (variant + 1)
    behind = b',"output_token_logprobs":[[%.7f,%d,null]]}}\n\n' % (logprob, token)
    size = len(before) + 18 + len(behind)
    return b"%x\r\n%s" % (size, before), behind + b"\r\n"


class Worker(asyncio.Protocol):
    """One connection, with its requests one after the other."""

    def __init__(self, burst: int) -> None:
        self._burst = burst
        self._room = asyncio.Event()
        self._room.set()
        self._received = b""
        self._writing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from it
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            size = 0
            for line in head.split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    size = int(line.partition(b":")[2])
            if len(self._received) < end + 4 + size:
                return
            body = self._received[end + 4 : end + 4 + size]
            self._received = self._received[end + 4 + size :]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"post /generate"):
            self._transport.write(_HEAD)
            paced = _EVERY.search(body)
            pace_s = float(paced[1]) / 1e3 if paced else 0.0
            self._writing = asyncio.get_running_loop().create_task(self._write(pace_s))
        else:
            reply_body = b'{"status":"ok","model_path":"none","is_generation":true}'
            self._transport.write(_JSON % (len(reply_body), reply_body))

    async def _write(self, pace_s: float) -> None:
        events = [event(variant) for variant in range(VARIANTS)]
        number = 0
        loop = asyncio.get_running_loop()
        while not self._transport.is_closing():
            await self._room.wait()
            stamp = STAMP % time.monotonic_ns()
            burst = 1 if pace_s else self._burst
            chunk = [
                part
                for variant in range(number, number + burst)
                for part in (events[variant % VARIANTS][0], stamp, events[variant % VARIANTS][1])
            ]
            number += burst
            self._transport.write(b"".join(chunk))
            if pace_s:  # all streams of this worker step together, as in a batch
                await asyncio.sleep(pace_s - loop.time() % pace_s)
            else:
                await asyncio.sleep(0)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.set()
        if self._writing is not None:
            self._writing.cancel()


async def main() -> None:
    """Serve until killed."""
    port, burst = int(sys.argv[1]), int(sys.argv[2])
    server = await asyncio.get_running_loop().create_server(
        lambda: Worker(burst), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
