"""Our messages parsed by vLLM's own classes: run by the Python of a vLLM environment, not by pytest.

Reads bodies and calls from standard input (see `test_vllm_contract`) and gives each to vLLM's class or route
for it. Prints the sampling parameters, the calls that reached the engine, and bodies of answers as vLLM's
classes write them. Exits with 3 if this release does not import here.
"""

import asyncio
import dataclasses
import importlib
import inspect
import json
import sys
import traceback
import types
from typing import Any

NOT_HERE = 3
RL_ROUTERS = ("vllm.entrypoints.rl.online.api_router", "vllm.entrypoints.serve.dev.rlhf.api_router")
RPC_ROUTER = "vllm.entrypoints.serve.dev.rpc.api_router"
SAMPLED = (
    *("max_tokens", "temperature", "seed", "top_p", "top_k", "min_p", "repetition_penalty", "min_tokens"),
    *("logprobs", "ignore_eos", "stop_token_ids"),
)


class Engine:
    """A replacement of vLLM's engine client that records its calls."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> str | None:
            self.calls.append([name, [repr(arg) for arg in args], {key: repr(kwargs[key]) for key in kwargs}])
            return "7" if name == "get_weight_version" else None

        return call


def completions(bodies: dict[str, Any]) -> dict[str, Any]:
    """Our bodies through vLLM's class of requests; a chunk and an error as its classes write them."""
    protocol = importlib.import_module("vllm.entrypoints.openai.completion.protocol")
    errors = importlib.import_module("vllm.entrypoints.serve.engine.protocol")
    found: dict[str, Any] = {}
    for name in ("completion", "masked"):
        body = bodies[name]
        request = protocol.CompletionRequest.model_validate(body)
        sampling = request.to_sampling_params(body["max_tokens"], {})
        found[name] = {
            "unknown": sorted(body.keys() - protocol.CompletionRequest.model_fields.keys()),
            "sampling": {key: getattr(sampling, key) for key in SAMPLED},
            "allowed_token_ids": sampling.allowed_token_ids,
            "cache_salt": request.cache_salt,
            "request_id": request.request_id,
        }
    choice = protocol.CompletionResponseStreamChoice(
        index=0,
        text="ab",
        token_ids=[5, 6],
        finish_reason="stop",
        stop_reason=6,
        logprobs=protocol.CompletionLogProbs(
            tokens=["token_id:5", "token_id:6"], token_logprobs=[-0.5, -0.25], text_offset=[0, 1]
        ),
    )
    chunk = protocol.CompletionStreamResponse(model="m", choices=[choice])
    found["chunk"] = chunk.model_dump_json(exclude_unset=True)
    info = errors.ErrorInfo(message="too long", type="BadRequestError", code=400)
    found["error"] = errors.ErrorResponse(error=info).model_dump_json()
    found["models"] = errors.ModelList(data=[errors.ModelCard(id="m", max_model_len=128)]).model_dump_json()
    return found


async def routes(calls: list[list[Any]]) -> dict[str, Any]:
    """Send our calls [method, path, body] through vLLM's routes; return calls of the engine, and answers."""
    import httpx
    from fastapi import FastAPI

    app = FastAPI()
    module = next(filter(None, map(imported, RL_ROUTERS)))
    app.include_router(module.router)
    app.include_router(importlib.import_module(RPC_ROUTER).router)
    engine = app.state.engine_client = Engine()
    answers = []
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://vllm") as client:
        for method, path, body in calls:
            answer = await client.request(method, path, json=body)
            answers.append([path, answer.status_code, answer.text])
    return {"answers": answers, "calls": engine.calls}


async def holding() -> dict[str, Any]:
    """Our route before and in a pause, with this release's own requests and states."""
    import gleaner_vllm
    import httpx
    from fastapi import FastAPI
    from gleaner_vllm.made_tokens import METHOD, MadeTokens
    from vllm.entrypoints.launchers.cli_args import FrontendArgs
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched.interface import PauseState
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore, EngineCoreProc
    from vllm.v1.engine.core_client import AsyncMPClient
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState
    from vllm.v1.request import Request, RequestStatus

    gleaner_vllm.register()
    there = {
        "middleware": "middleware" in {field.name for field in dataclasses.fields(FrontendArgs)},
        "utility": hasattr(AsyncMPClient, "call_utility_async"),
        "work": hasattr(EngineCoreProc, "has_work"),
        "pause": isinstance(Scheduler.pause_state, property),
        "scheduler": "self.requests: dict[str, Request]" in inspect.getsource(Scheduler.__init__),
        "states": "self.request_states: dict[str, RequestState]" in inspect.getsource(OutputProcessor),
        "external": "external_req_id" in inspect.signature(RequestState.__init__).parameters,
    }
    requests = {}
    for name, made in (("cmpl-a-0-1f", 3), ("cmpl-b-0-2f", 0), ("cmpl-ended-0-3f", 5)):
        params = SamplingParams(max_tokens=9)
        requests[name] = Request(
            request_id=name, prompt_token_ids=[1, 2], sampling_params=params, pooling_params=None
        )
        requests[name].append_output_token_ids([7] * made)
    requests["cmpl-ended-0-3f"].status = RequestStatus.FINISHED_STOPPED
    core = types.SimpleNamespace(
        scheduler=types.SimpleNamespace(pause_state=PauseState.UNPAUSED, requests=requests),
        has_work=lambda: False,
    )

    async def call(method: str) -> Any:
        return getattr(EngineCore, method)(core)

    known = {name: types.SimpleNamespace(external_req_id=name[:-3]) for name in requests}
    app = FastAPI()
    app.state.engine_client = types.SimpleNamespace(
        engine_core=types.SimpleNamespace(call_utility_async=call),
        output_processor=types.SimpleNamespace(request_states=known),
    )
    app.add_middleware(MadeTokens)
    answers = []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://vllm") as client:
        for state in (PauseState.UNPAUSED, PauseState.PAUSED_NEW, PauseState.PAUSED_ALL):
            core.scheduler.pause_state = state
            answers.append((await client.get("/gleaner/made_tokens")).json())
        other = (await client.get("/other")).status_code
    return {"there": there, "answers": answers, "other": other, "method": METHOD}


def imported(name: str) -> Any:
    """The module, or None where this release has it elsewhere."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def main() -> int:
    """See the module."""
    given = json.load(sys.stdin)
    try:
        import vllm

        print(f"vllm {vllm.__version__} at {vllm.__file__}", file=sys.stderr)
        found = completions(given["bodies"])
        found["routes"] = asyncio.run(routes(given["calls"]))
        sys.path.insert(0, given["plugin"])
        found["holding"] = asyncio.run(holding())
    except ImportError:
        traceback.print_exc()
        return NOT_HERE
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
