"""Server process: load the model, listen, serve until stopped, stop in order.

Owns the order of these steps. Adapter: sockets and the model's files; signals are the caller's.
"""

import asyncio
import contextlib
import random
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from gleaner.actors.engine.builtin.engine import BuiltinEngine
from gleaner.actors.engine.builtin.engine_size import EngineSize
from gleaner.actors.engine.builtin_server.answers import Answers
from gleaner.actors.engine.builtin_server.application import ServedModel, Server
from gleaner.actors.engine.builtin_server.batch_loop import BatchLoop
from gleaner.actors.engine.builtin_server.request_parser import Engine
from gleaner.actors.engine.builtin_server.status_schema import ServerInfo
from gleaner.actors.model.checkpoint import load_checkpoint
from gleaner.actors.reward.prompts import Prompts
from gleaner.transport.token_frame import MAX_ROWS

__all__ = ["MAX_SLOTS", "Settings", "loaded", "serve"]

MAX_SLOTS = MAX_ROWS // 2
LONGEST = 2048
"""Tokens of a request by default, where the model has positions for more."""
WIRE = "0.5.23"
"""The SGLang release of this protocol."""
CLOSE_S = 2.0
IDLE_S = 75.0  # of a connection without a whole request
"""Time to finish writing replies when all requests have ended."""


Wait = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """max_tokens: of prompt and response together, None: the model's limit, up to `LONGEST`. seed: for
    requests without a seed. grace_s: for requests that run when the server is stopped. reserve_mb: memory of
    the device that it may use, 0: no limit, on the host; see `EngineSize`. name: of the model for clients,
    "": the folder."""

    model: Path
    host: str
    port: int
    slots: int = 32
    max_tokens: int | None = None
    threads: int = 1
    exact: bool = False
    reserve_mb: int = 0
    device: str = "cpu"
    name: str = ""
    weight_version: str = "default"
    seed: int = 0
    grace_s: float = 5.0
    api_key: str | None = None


async def serve(
    settings: Settings, sock: socket.socket, ready: Callable[[str], None], stop: Wait, hurry: Wait
) -> None:
    """Serve until `stop` returns; `ready` is called with the URL. `hurry` shortens the grace of running
    requests.

    `sock`: bound, not yet listened at; closed at the end. Raises BadCheckpoint, BadTokenizer, NotExact or
    DoesNotFit for a model that cannot be served, and errors of a broken engine.
    """
    with sock:
        port = int(sock.getsockname()[1])
        server, batch_loop = await asyncio.to_thread(lambda: loaded(settings, port))
        runner = web.AppRunner(
            server.application(),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=CLOSE_S,
            keepalive_timeout=IDLE_S,
        )
        await runner.setup()
        turning = asyncio.ensure_future(batch_loop.run())
        try:
            await web.SockSite(runner, sock).start()
            ready(f"http://{_shown(settings.host)}:{port}")
            await _first(stop(), turning)
            if not turning.done():
                await _first(server.drained(settings.grace_s), hurry())
            await server.drained(0.0)
            await runner.cleanup()
        finally:
            turning.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await turning


def loaded(settings: Settings, port: int) -> tuple[Server, BatchLoop]:
    """The model, ready to serve: the routes, and the `BatchLoop` that the caller must drive."""
    prompts = Prompts(settings.model)
    model = load_checkpoint(settings.model).requires_grad_(False)
    config = model.config
    max_tokens = settings.max_tokens or min(config.max_position_embeddings, LONGEST)
    engine = BuiltinEngine(
        model,
        EngineSize(
            slots=settings.slots,
            max_tokens=max_tokens,
            threads=settings.threads,
            reserve_bytes=settings.reserve_mb << 20,
            device=settings.device,
        ),
        eos_token_ids=config.eos_token_ids,
        exact=settings.exact,
    )
    seeds = random.Random(settings.seed)
    answers = Answers(prompts)
    batch_loop = BatchLoop(engine, settings.weight_version, answers.stopped, time.monotonic)
    checked = Engine(
        vocabulary=config.vocab_size,
        max_tokens=max_tokens,
        eos=frozenset(config.eos_token_ids),
        prompts=prompts,
        draw=lambda: seeds.getrandbits(63),
        name=lambda: uuid.uuid4().hex,
    )
    info = ServerInfo(
        model_path=str(settings.model),
        tokenizer_path=str(settings.model),
        served_model_name=settings.name or str(settings.model),
        weight_version=settings.weight_version,
        version=WIRE,
        host=settings.host,
        port=port,
        random_seed=settings.seed,
        context_length=max_tokens,
        max_running_requests=settings.slots,
        max_total_num_tokens=settings.slots * max_tokens,
        max_total_tokens=settings.slots * max_tokens,
        max_req_input_len=max_tokens,  # as SGLang's: a prompt is shorter than this
        status="ready",
    )
    return Server(ServedModel(config, checked, info, settings.api_key), batch_loop, answers), batch_loop


async def _first(*waited: Awaitable[object]) -> None:
    """Wait until one of these is done. The others are left running, except those that only wait here."""
    tasks = [asyncio.ensure_future(one) for one in waited]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, one in zip(tasks, waited, strict=True):
        if task is not one:
            task.cancel()


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
