"""Load client: a number of requests, a number at a time, each streamed to its end.

`python -m bench.gateway.client ORDERS`.

A process of its own, so that its work is not counted elsewhere. Of a stream it decodes the first and the last
event only: the bench measures the front's work in between, not a client's.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import aiohttp
import msgspec
import uvloop

from gleaner.transport.http_body import body_start


class Orders(msgspec.Struct, frozen=True):
    """url of the front; `requests` in all, `together` at a time, each of `tokens`; they end at `limit_s`."""

    url: str
    requests: int
    together: int
    tokens: int
    limit_s: float


@dataclass(slots=True)
class LoadResult:
    """tokens that arrived; seconds from the first request to the last token; ttft_s of each request; errors:
    one line for each failed request; broken: streams that ended without their last event."""

    tokens: int = 0
    seconds: float = 0.0
    ttft_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    broken: int = 0


class _Meta(msgspec.Struct):
    completion_tokens: int = 0
    finish_reason: dict[str, object] | None = None


class _Event(msgspec.Struct):
    meta_info: _Meta


async def load(orders: Orders) -> LoadResult:
    """Run the load and return the result."""
    seen = LoadResult()
    numbers = iter(range(orders.requests))
    timeout = aiohttp.ClientTimeout(total=orders.limit_s)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=1 << 20) as session:
        begin_s = time.monotonic()
        await asyncio.gather(
            *(_one_after_the_other(session, orders, numbers, seen) for _ in range(orders.together))
        )
        seen.seconds = time.monotonic() - begin_s
    return seen


async def _one_after_the_other(
    session: aiohttp.ClientSession, orders: Orders, numbers: Iterator[int], seen: LoadResult
) -> None:
    for number in numbers:
        try:
            await _one(session, orders, number, seen)
        except (TimeoutError, aiohttp.ClientError, OSError) as problem:
            seen.errors.append(repr(problem)[:200])


async def _one(session: aiohttp.ClientSession, orders: Orders, number: int, seen: LoadResult) -> None:
    body = {
        "input_ids": [7 + number % 1000, *range(20, 83)],
        "sampling_params": {"max_new_tokens": orders.tokens, "temperature": 0.0, "ignore_eos": True},
        "return_logprob": True,
        "stream": True,
    }
    sent_s = time.monotonic()
    async with session.post(f"{orders.url}/generate", json=body) as response:
        if response.status != 200:
            reply_body = (await body_start(response, 160)).decode(errors="replace")
            seen.errors.append(f"{response.status}: {reply_body}")
            return
        last = b""
        async for line in response.content:
            if line.startswith(b"data: {"):
                if not last:
                    seen.ttft_s.append(time.monotonic() - sent_s)
                last = line
    meta = msgspec.json.decode(last[6:], type=_Event).meta_info if last else _Meta()
    seen.tokens += meta.completion_tokens
    if meta.finish_reason is None or meta.completion_tokens != orders.tokens:
        seen.broken += 1


if __name__ == "__main__":
    found = uvloop.run(load(msgspec.json.decode(sys.argv[1], type=Orders)))
    sys.stdout.write(json.dumps(asdict(found)))
