"""Router client: `python -m bench.token_plane.router_client ORDERS_JSON`.

Runs in the router's environment. One process, one thread, as many streams as there are requests. `parse`:
aiohttp, every event decoded (orjson) and appended to the token log of its request. `count`: bare sockets,
nothing decoded, the events in the received bytes are counted. Prints a line of JSON when it begins to
measure, and one with the result.
"""

import asyncio
import json
import math
import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

import aiohttp
import orjson
import uvloop

from bench.token_plane.fake_worker import STAMP_ZERO
from bench.token_plane.request_log import opened

BODY = (
    b'{"rid":"every %g ms","input_ids":[1,2,3,4],"sampling_params":{"max_new_tokens":4194304},"stream":true}'
)
MAX_TIMES = 100_000


class Count:
    """Tokens and times of `seconds`, which begin `warm_s` after the last stream has received data."""

    def __init__(self, streams: int, warm_s: float, seconds: float) -> None:
        self._silent, self._warm_s, self._seconds = streams, warm_s, seconds
        self.begin_s = self.end_s = math.inf
        self.tokens = 0
        self.times = array("d")
        self._cpu_s: float | None = None
        self.cpu_s = 0.0

    def flows(self, now_s: float) -> None:
        """Count a stream's first data; after the last stream, print when the measurement begins."""
        self._silent -= 1
        if not self._silent:
            self.begin_s = now_s + self._warm_s
            self.end_s = self.begin_s + self._seconds
            print(json.dumps({"begin_s": self.begin_s}), flush=True)

    def add(self, tokens: int, now_s: float, sent_ns: int | None) -> None:
        """These became visible."""
        if not self.begin_s <= now_s < self.end_s:
            return
        if self._cpu_s is None:
            self._cpu_s = time.process_time()
        self.cpu_s = time.process_time() - self._cpu_s
        self.tokens += tokens
        if sent_ns is not None and len(self.times) < MAX_TIMES:
            self.times.append(now_s - (sent_ns - STAMP_ZERO) / 1e9)


async def parse(url: str, streams: int, body: bytes, count: Count) -> None:
    """Every stream to its token log, until the end of the measurement."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    logs = opened(streams)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def one(number: int) -> None:
            log = logs[number]
            headers = {"content-type": "application/json"}
            async with session.post(f"{url}/generate", data=body, headers=headers) as response:
                response.raise_for_status()
                left, silent = b"", True
                async for data in response.content.iter_any():
                    *events, left = (left + data).split(b"\n\n")
                    taken, sent_ns = 0, None
                    for event in events:
                        answer = orjson.loads(event[6:])  # data: {...}
                        meta = answer["meta_info"]
                        sent_ns = meta["sent_ns"]
                        for logprob, token, _ in meta["output_token_logprobs"]:
                            log.append(token, logprob, "router", 1, version=0)
                            taken += 1
                    now = time.monotonic()
                    if silent:
                        silent = False
                        count.flows(now)
                    count.add(taken, now, sent_ns)
                    if now >= count.end_s:
                        return

        await asyncio.gather(*(one(number) for number in range(streams)))


class _Bytes(asyncio.Protocol):
    """Counts the events in the received bytes."""

    def __init__(self, count: Count, host: str, body: bytes, over: "asyncio.Future[None]") -> None:
        self._count, self._host, self._body, self._over = count, host, body, over
        self._silent = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from it
        head = f"POST /generate HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        self._transport.write(f"{head}content-length: {len(self._body)}\r\n\r\n".encode() + self._body)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        events = data.count(b"data: ")
        if self._silent and events:
            self._silent = False
            self._count.flows(now)
        self._count.add(events, now, None)
        if now >= self._count.end_s:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._over.done():
            self._over.set_result(None)


async def count_bytes(url: str, streams: int, body: bytes, count: Count) -> None:
    """Every stream counted, until the end of the measurement."""
    loop = asyncio.get_running_loop()
    host = url.removeprefix("http://")
    name, _, port = host.partition(":")
    overs = []
    for _ in range(streams):
        over = loop.create_future()
        await loop.create_connection(partial(_Bytes, count, host, body, over), name, int(port))
        overs.append(over)
    await asyncio.gather(*overs)


WAYS: dict[str, Callable[[str, int, bytes, Count], Awaitable[None]]] = {"parse": parse, "count": count_bytes}


async def main() -> None:
    """Measure once."""
    orders = json.loads(sys.argv[1])
    count = Count(orders["streams"], orders["warm_s"], orders["seconds"])
    body = BODY % (orders["pace_s"] * 1e3)
    async with asyncio.timeout(orders["limit_s"]):
        await WAYS[orders["way"]](orders["url"], orders["streams"], body, count)
    times = sorted(count.times)
    found = {"tokens": count.tokens, "cpu_s": count.cpu_s, "times": times[:: max(1, len(times) // 2000)]}
    print(json.dumps(found))


if __name__ == "__main__":
    uvloop.run(main())
