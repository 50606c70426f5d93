"""A server of SGLang's form whose tokens and experts are formulas of their positions and of its name."""

import asyncio
import base64
from typing import Any

import msgspec
import numpy as np
from aiohttp import web
from numpy.typing import NDArray

LAYERS, EACH = 2, 3
STEP_S = 0.002


def token_at(place: int) -> int:
    """Token of a response; all servers make the same."""
    return 5 + place * 7 % 50


def rows_of(name: int, tokens: list[int]) -> NDArray[np.int32]:
    """Expert rows that server `name` reports for these tokens, [tokens - 1, LAYERS x EACH].

    They differ between servers."""
    rows = [
        [(name + 3 * place + 11 * at + token) % 90 + 100 * name for at in range(LAYERS * EACH)]
        for place, token in enumerate(tokens[:-1])
    ]
    return np.array(rows, "<i4").reshape(-1, LAYERS * EACH)


class ExpertServer:
    """name: 1 or more. routed: it was started with the flag. hold_at: it makes so many of a request and then
    waits; None: as many as requested. silent: so many ends arrive without their rows. apart: distance of its
    tokens from those of other servers. unfit: the reason why it can serve no grammar."""

    def __init__(
        self,
        name: int,
        *,
        routed: bool = True,
        hold_at: int | None = None,
        silent: int = 0,
        apart: int = 0,
        unfit: str = "",
    ) -> None:
        self.name, self.routed, self.hold_at, self.silent = name, routed, hold_at, silent
        self.apart, self.unfit = apart, unfit
        self.asked: list[list[int]] = []
        self.params: list[dict[str, object]] = []
        self.url = ""
        self._aborted: dict[str, asyncio.Event] = {}
        self._wake = asyncio.Event()
        self._connections: list[web.Request] = []
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "ExpertServer":
        app = web.Application()
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_route("*", "/{path:.*}", self._info)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def go_on(self) -> None:
        """Release all held requests."""
        self.hold_at = None
        self._wake.set()

    async def die(self) -> None:
        """Stop as by SIGKILL: all connections fall silent and the port is closed."""
        for request in self._connections:
            if request.transport is not None:
                request.transport.abort()
        runner, self._runner = self._runner, None
        assert runner is not None
        await runner.cleanup()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt, rid = body["input_ids"], body["rid"]
        most = body["sampling_params"]["max_new_tokens"]
        probe = "probe" in rid or "temperature" in rid
        if not probe:
            self.asked.append(prompt)
            self.params.append(body["sampling_params"])
        aborted = self._aborted.setdefault(rid, asyncio.Event())
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        self._connections.append(request)
        try:
            made: list[int] = []
            if self.unfit and "regex" in body["sampling_params"]:
                end = {"type": "abort", "message": self.unfit, "status_code": 400}
                meta = {"meta_info": {"completion_tokens": 0, "finish_reason": end}}
                await reply.write(b"data: " + msgspec.json.encode(meta) + b"\n\n")
                return reply
            while len(made) < most and not aborted.is_set():
                while len(made) == self.hold_at and not probe and not aborted.is_set():
                    self._wake.clear()
                    await self._wake.wait()
                if aborted.is_set():
                    break
                await asyncio.sleep(STEP_S)
                made.append(token_at(len(prompt) + len(made)) + self.apart)
                if len(made) < most:
                    await reply.write(self._event(body, made, None, False, 0.0 if probe else -0.5))
            finish = "abort" if aborted.is_set() else "length"
            wanted = bool(body.get("return_routed_experts")) and self.routed
            if wanted and self.silent:
                self.silent -= 1
                wanted = False
            await reply.write(self._event(body, made, finish, wanted, 0.0 if probe else -0.5))
            self.silent -= int(self.silent > 0 and "top_logprobs_num" in body)
            await reply.write(b"data: [DONE]\n\n")
        finally:
            self._connections.remove(request)
        return reply

    def _event(
        self, body: dict[str, Any], made: list[int], finish: str | None, experts: bool, logprob: float
    ) -> bytes:
        prompt = body["input_ids"]
        meta: dict[str, object] = {
            "completion_tokens": len(made),
            "finish_reason": None if finish is None else {"type": finish},
            "output_token_logprobs": [[logprob, token, None] for token in made],
            "weight_version": "found",
        }
        if experts:
            meta["routed_experts"] = base64.b64encode(rows_of(self.name, prompt + made).tobytes()).decode()
        if "top_logprobs_num" in body and not self.silent:
            meta |= self._tops(body, made, logprob)
        return b"data: " + msgspec.json.encode({"meta_info": meta}) + b"\n\n"

    def _tops(self, body: dict[str, Any], made: list[int], logprob: float) -> dict[str, object]:
        """Top tokens at each place: the token there, then others, each less likely by `name`."""
        top, prompt = body["top_logprobs_num"], body["input_ids"][body["logprob_start_len"] :]

        def likeliest(token: int) -> list[list[object]]:
            return [[logprob - self.name * step, token + step, None] for step in range(top)]

        return {
            "input_token_logprobs": [
                [None, prompt[0], None],
                *([logprob, token, None] for token in prompt[1:]),
            ],
            "input_top_logprobs": [None, *(likeliest(token) for token in prompt[1:])],
            "output_top_logprobs": [likeliest(token) for token in made],
        }

    async def _abort(self, request: web.Request) -> web.Response:
        self._aborted.setdefault((await request.json())["rid"], asyncio.Event()).set()
        self._wake.set()
        return web.Response()

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "model_path": "moe",
                "weight_version": "found",
                "enable_return_routed_experts": self.routed,
                "success": True,
            }
        )
