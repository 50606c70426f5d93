"""Fake server of SGLang's form: prepared events, no decoding, no bottleneck.

`python -m bench.gateway.fake_server PORT STEP_MS MOST`. All its requests step together, every STEP_MS: each
makes a token a step, up to its `max_new_tokens` (at most MOST). Events are cumulative as SGLang's are, and
sent as SGLang sends them: one a token, or, where the request has a `stream_interval`, one for its first token
and one each time that so many more exist.
"""

import asyncio
import json
import re
import sys

import uvloop
from aiohttp import web

_LIMIT = re.compile(rb'"max_new_tokens": ?(\d+)')
_INTERVAL = re.compile(rb'"stream_interval": ?(\d+)')
VERSION = "default"


def events(most: int) -> list[bytes]:
    """The first, second, ... event of a request that is not its last."""
    return [_event(count, None) for count in range(1, most + 1)]


def _event(count: int, finish: str | None) -> bytes:
    tokens = [(977 * at) % 8000 for at in range(count)]
    meta = {
        "id": "0123456789abcdef",
        "finish_reason": {"type": finish, "length": count} if finish else None,
        "prompt_tokens": 64,
        "completion_tokens": count,
        "cached_tokens": 0,
        "weight_version": VERSION,
        "output_token_logprobs": [[-0.01 * (at % 64 + 1), token, None] for at, token in enumerate(tokens)],
    }
    text = json.dumps({"text": "", "output_ids": tokens, "meta_info": meta}, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def is_told(made: int, most: int, interval: int) -> bool:
    """Whether SGLang sends an event at this number of tokens."""
    return made == most or (made - 1) % interval == 0


class Server:
    """Answers the requests of a front to a server."""

    def __init__(self, step_s: float, most: int) -> None:
        self._step_s, self._most = step_s, most
        self._events = events(most)
        self._ends = [_event(count, "length") for count in range(1, most + 1)]
        self._stepped = asyncio.Event()
        self._running = 0

    async def steps(self) -> None:
        """Step, for ever."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + self._step_s, loop.time())
            await asyncio.sleep(due_s - loop.time())
            stepped, self._stepped = self._stepped, asyncio.Event()
            stepped.set()

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Cumulative events, a token a step."""
        body = await request.read()
        limit, given = _LIMIT.search(body), _INTERVAL.search(body)
        count = min(self._most, int(limit[1]) if limit else 16)
        interval = int(given[1]) if given else 1
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self._running += 1
        try:
            for at in range(count):
                await self._stepped.wait()
                if is_told(at + 1, count, interval):
                    await response.write(self._events[at] if at < count - 1 else self._ends[at])
            await response.write(b"data: [DONE]\n\n")
        finally:
            self._running -= 1
        return response

    async def info(self, request: web.Request) -> web.Response:
        """Answers about the server, its model, its load: a front reads the fields that it knows."""
        load = {"num_running_reqs": self._running, "num_waiting_reqs": 0, "num_reqs": self._running}
        return web.json_response(
            {
                "model_path": "fake",
                "tokenizer_path": "",
                "served_model_name": "fake",
                "context_length": 4096,
                "max_running_requests": 1024,
                "weight_version": VERSION,
                "is_generation": True,
                "loads": [load],
                "status": "ok",
            }
        )


async def main() -> None:
    """Serve until killed."""
    port, step_ms, most = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    server = Server(step_ms / 1e3, most)
    app = web.Application()
    app.router.add_post("/generate", server.generate)
    app.router.add_route("*", "/{path:.*}", server.info)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    await server.steps()


if __name__ == "__main__":
    uvloop.run(main())
