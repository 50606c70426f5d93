"""verl's own registries, manager, client and balancer with our classes, on Ray.

The test needs verl in .bench/verl, which `make verl` installs. `verl_classes.py` runs there; its gateway is
here.
"""

import asyncio
import json
import os
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".bench" / "verl" / "bin" / "python"
READY = ROOT / ".bench" / "verl" / ".ready"

pytestmark = [
    pytest.mark.verl,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not READY.exists(), reason="no verl here: make verl"),
]


class Gateway:
    """Generates as many tokens as the prompt has, and records every other call."""

    def __init__(self) -> None:
        self.asks: list[dict[str, object]] = []
        self.calls: list[tuple[str, dict[str, object]]] = []

    async def generate(self, request: web.Request) -> web.Response:
        ask = await request.json()
        self.asks.append(ask)
        rows = [[-0.5, 7, None]] * len(ask["input_ids"])
        versions = {"weight_version": "4", "weight_version_start": 3, "weight_version_end": 4}
        meta = {"finish_reason": {"type": "stop"}, "output_token_logprobs": rows, **versions}
        return web.json_response({"text": "", "output_ids": [7] * len(rows), "meta_info": meta})

    async def other(self, request: web.Request) -> web.Response:
        self.calls.append((request.path, await request.json()))
        return web.json_response({"success": True})


async def test_verl_generates_and_updates_weights_through_the_gateway() -> None:
    gateway = Gateway()
    app = web.Application()
    app.router.add_post("/generate", gateway.generate)
    app.router.add_post("/{path:.*}", gateway.other)
    async with TestServer(app) as server:
        process = await asyncio.create_subprocess_exec(
            PYTHON,
            ROOT / "tests" / "rlctl" / "verl_classes.py",
            str(server.make_url("/")).rstrip("/"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        output, why = await process.communicate()
    assert process.returncode == 0, why.decode()[-4000:]
    found = json.loads(output.splitlines()[-1])
    assert found["config"]
    assert found["balancer"] == {"names_differ": True, "handle": "handle", "after_early": 1, "after_late": 0}
    assert found["update"]["rollout"]
    assert found["update"]["written"] == [
        "config.json",
        "model-00000.safetensors",
        "model.safetensors.index.json",
    ]
    generated = found["generate"]
    assert generated["replica"]
    assert generated["output"]
    assert (generated["token_ids"], generated["again"]) == ([7] * 3, [7] * 4)
    assert generated["log_probs"] == [-0.5] * 3
    assert (generated["stop_reason"], generated["rejected"]) == ("completed", "aborted")
    assert generated["steps"] == [3, 4, 4]
    assert generated["inflight"] == 0
    assert [ask["input_ids"] for ask in gateway.asks] == [[1, 2, 3], [1, 2, 3, 4]]
    assert len({ask["rid"] for ask in gateway.asks}) == 2
    assert [path for path, _ in gateway.calls] == ["/flush_cache", "/update_weights_from_disk"]
    update = gateway.calls[1][1]
    assert str(update["model_path"]).endswith("/version-5")
    assert update["weight_version"] == "5"
