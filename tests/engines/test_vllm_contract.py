"""Our messages against vLLM's own classes and routes, in released versions from `make engine-vllm`.

The script `vllm_contract.py` runs in vLLM's environment. Older releases have only their Python files and use
the libraries of the newest one.
"""

import functools
import json
import os
import subprocess
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gleaner.actors.engine.servers.factory import VLLM_PLUGIN
from gleaner.actors.engine.servers.port import Ask, Chunk
from gleaner.actors.engine.servers.vllm_messages import (
    AbortRequests,
    CollectiveRpc,
    CompletionChunk,
    ErrorInfo,
    FinishUpdate,
    InitTransfer,
    MadeTokens,
    Masked,
    Models,
    NewVersion,
    Nothing,
    Reload,
    WeightInfo,
    chunk_of,
    completion_of,
    update_of,
)
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.sampling_params import Sampling

ROOT = Path(__file__).parents[2]
VLLM = ROOT / ".engines" / "vllm"
SCRIPT = Path(__file__).with_name("vllm_contract.py")
RELEASES = ("0.30.0", "0.31.0", "0.32.0")
NOT_HERE = 3

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not (VLLM / ".ready").exists(), reason="no vLLM here: make engine-vllm"),
]

DRAWN = Sampling(
    top_p=0.9, top_k=-1, min_p=0.1, repetition_penalty=1.2, min_new_tokens=5, stop_token_ids=(7,)
)
ASK = Ask("r1", array("I", [1, 2, 3]), 9, temperature=0.7, seed=2**63 + 5, made=2, sampling=DRAWN)
SPEC = TensorSpec("lm_head.weight", "float32", (2, 4), 64, 32)


def builtins_of(body: msgspec.Struct) -> Any:
    return json.loads(msgspec.json.encode(body))


CALLS = [
    ["POST", "/init_weight_transfer_engine", builtins_of(InitTransfer())],
    ["POST", "/pause?mode=abort", builtins_of(Nothing())],
    ["POST", "/pause?mode=keep", builtins_of(Nothing())],
    ["POST", "/start_weight_update", builtins_of(Nothing())],
    ["POST", "/update_weights", builtins_of(update_of("/dev/shm/image", (SPEC,)))],
    ["POST", "/finish_weight_update", builtins_of(FinishUpdate("7-ab"))],
    ["POST", "/collective_rpc", builtins_of(CollectiveRpc(Reload("/dev/shm/folder")))],
    ["POST", "/update_weight_version", builtins_of(NewVersion("7-ab"))],
    ["GET", "/weight_info", None],
    ["POST", "/abort_requests", builtins_of(AbortRequests(["cmpl-r1-0"]))],
    ["POST", "/resume", builtins_of(Nothing())],
]


@functools.cache
def of_release(version: str) -> dict[str, Any]:
    """Output of the script under this release; skips with a reason if the release does not import."""
    where = VLLM / "older" / version
    given = {
        "bodies": {
            "completion": builtins_of(completion_of(ASK, "m", "salt", (5, 6))),
            "masked": builtins_of(Masked(model="m", prompt=[1], allowed_token_ids=[1])),
        },
        "calls": CALLS,
        "plugin": str(VLLM_PLUGIN),
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CONFIGURE_LOGGING": "0"}
    environment.pop("PYTHONPATH", None)
    if where.is_dir():
        environment["PYTHONPATH"] = str(where)
    run = subprocess.run(
        [VLLM / "bin" / "python", SCRIPT],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
        timeout=360,
    )
    if run.returncode == NOT_HERE:
        pytest.skip(f"vLLM {version} does not import here: {run.stderr.splitlines()[-1]}")
    assert run.returncode == 0, run.stderr[-4000:]
    assert version in run.stderr, run.stderr[-4000:]
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("version", RELEASES)
def test_our_sampling_keeps_its_meaning_in_vllm(version: str) -> None:
    found = of_release(version)
    completion = found["completion"]
    assert completion["unknown"] == []
    assert (completion["cache_salt"], completion["request_id"]) == ("salt", "r1")
    sampling = completion["sampling"]
    assert 0 <= sampling.pop("seed") < 2**63
    assert sampling == {
        "max_tokens": 9,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "min_tokens": 3,
        "logprobs": 0,
        "ignore_eos": True,
        "stop_token_ids": [7, 5, 6],
    }
    assert found["masked"]["unknown"] == []
    assert found["masked"]["allowed_token_ids"] == [1]


@pytest.mark.parametrize("version", RELEASES)
def test_vllm_answers_are_read(version: str) -> None:
    found = of_release(version)
    assert chunk_of(found["chunk"].encode()) == Chunk([5, 6], [-0.5, -0.25], "stop")
    assert msgspec.json.decode(found["error"], type=CompletionChunk).error == ErrorInfo("too long", 400)
    assert msgspec.json.decode(found["models"], type=Models).data[0].max_model_len == 128


@pytest.mark.parametrize("version", RELEASES)
def test_our_orders_reach_the_engine(version: str) -> None:
    found = of_release(version)["routes"]
    assert [(path, status) for path, status, _ in found["answers"]] == [(path, 200) for _, path, _ in CALLS]
    answers = {path: text for path, _, text in found["answers"]}
    assert msgspec.json.decode(answers["/weight_info"], type=WeightInfo).weight_version == "7"
    calls = {name: (args, named) for name, args, named in found["calls"]}
    assert "lm_head.weight" in calls["update_weights"][1]["request"]
    assert "/dev/shm/image" in calls["update_weights"][1]["request"]
    assert calls["finish_weight_update"][0] == ["'7-ab'"]
    assert calls["update_weight_version"][0] == ["'7-ab'"]
    assert calls["collective_rpc"][1]["method"] == "'reload_weights'"
    assert "/dev/shm/folder" in calls["collective_rpc"][1]["kwargs"]
    assert calls["abort"][0] == ["['cmpl-r1-0']"]


@pytest.mark.parametrize("version", RELEASES)
def test_paused_engine_reports_made_tokens_by_request(version: str) -> None:
    found = of_release(version)["holding"]
    assert all(found["there"].values()), found["there"]
    running, finishing, held = (msgspec.convert(one, MadeTokens) for one in found["answers"])
    assert running == finishing == MadeTokens(paused=False, made={})
    assert held == MadeTokens(paused=True, made={"cmpl-a-0": 3, "cmpl-b-0": 0})
    assert found["other"] == 404, "all other routes are vLLM's"
