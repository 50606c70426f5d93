"""Our requests to SGLang and the fields we read, compared with its types in three releases to find drift."""

import json
import os
import subprocess
from array import array
from pathlib import Path

import msgspec
import numpy as np
import pytest
from engine_kinds import SGLANG
from engines_world import publish_image

from gleaner.actors.engine.images.checkpoint_folder import ServedFolder
from gleaner.actors.engine.servers.factory import sglang_command
from gleaner.actors.engine.servers.port import Ask
from gleaner.actors.engine.servers.sglang import sampling_params
from gleaner.actors.engine.servers.sglang_messages import (
    AbortRequest,
    EmptyBody,
    FinishReason,
    Generate,
    Meta,
    ModelInfo,
    Pause,
    Updated,
    UpdateWeightsFromDisk,
    UpdateWeightsFromTensor,
    only_a_name,
)
from gleaner.actors.engine.servers.sglang_weights import LOADER, PLUGIN
from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.actors.weights.image.reader_locks import mapped

pytestmark = [pytest.mark.engines, pytest.mark.timeout(240)]

INSTALLED = "0.5.23"
OTHERS = ("0.5.22", "0.5.20")
SESSION = ("/begin_weight_update", "/end_weight_update")
WITHOUT_SESSION = ("0.5.20",)  # its weights go by a folder
WITHOUT_HOLDING = ("0.5.20",)  # its requests are handed over
SAMPLINGS = (
    Sampling(),
    Sampling(top_p=0.9, top_k=40, min_p=0.1, ignore_eos=True, stop_token_ids=(3, 4)),
    Sampling(frequency_penalty=0.5, presence_penalty=-0.5, repetition_penalty=1.2, min_new_tokens=3),
)
STRANGE = {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}, "no_such_field": 1}


def generate(sampling: Sampling) -> Generate:
    ask = Ask("r-1", array("I", [5, 6, 7]), 9, 0.7, 2**63, sampling=sampling, interval=4)
    return Generate(rid=ask.rid, input_ids=ask.tokens.tolist(), sampling_params=sampling_params(ask))


def fields_of(kind: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind)]


def loads(directory: Path) -> dict[str, object]:
    """Arguments of our loader for an image, and the tensors that a model must get from it."""
    fetched = publish_image(directory, 3)
    image, order = mapped(fetched.path), ServedFolder().write_order(fetched)
    tensors = {
        spec.name: np.frombuffer(image, "<f4", spec.nbytes // 4, spec.offset).reshape(spec.shape).tolist()
        for spec in fetched.tensors
    }
    named = only_a_name(str(order))
    return {"modules": str(PLUGIN), "loader": LOADER, "named": named, "tensors": tensors}


def contract(release: str, directory: Path) -> dict[str, object]:
    """The whole contract, as input of the script."""
    named = [only_a_name("/dev/shm/order.json")]
    absent = SESSION if release in WITHOUT_SESSION else ()
    posts: dict[str, list[msgspec.Struct]] = {
        "/generate": [generate(sampling) for sampling in SAMPLINGS],
        "/abort_request": [AbortRequest(rid="r-1"), AbortRequest(abort_all=True)],
        "/pause_generation": [Pause(mode=mode) for mode in ("abort", "retract", "in_place")],
        "/continue_generation": [EmptyBody()],
        "/update_weights_from_disk": [UpdateWeightsFromDisk(model_path="/m", weight_version="v3-00")],
        "/update_weights_from_tensor": [
            UpdateWeightsFromTensor(
                serialized_named_tensors=named, load_format=LOADER, weight_version="v3-00"
            )
        ],
        **{path: [EmptyBody()] for path in SESSION if path not in absent},
        "/release_memory_occupation": [EmptyBody()],
        "/resume_memory_occupation": [EmptyBody()],
    }
    command = sglang_command(SGLANG.settings(), "http://127.0.0.1:1", Path("/m"), "v3-00")
    reads = {
        "sglang.srt.managers.tokenizer_manager": fields_of(Meta),
        "sglang.srt.managers.schedule_batch": fields_of(FinishReason),
        "sglang.srt.entrypoints.http_server": [*fields_of(ModelInfo), *fields_of(Updated), "version"],
    }
    return {
        "posts": {path: msgspec.to_builtins(bodies) for path, bodies in posts.items()}
        | {"/generate": [*msgspec.to_builtins(posts["/generate"]), STRANGE]},
        "absent": absent,
        "arguments": [*command[3:]],
        "loads": loads(directory),
        "reads": reads,
        "keeps": release not in WITHOUT_HOLDING,
    }


@pytest.mark.parametrize(
    "release", [INSTALLED, *(pytest.param(release, marks=pytest.mark.older) for release in OTHERS)]
)
def test_release_matches_our_requests_and_fields(release: str, tmp_path: Path) -> None:
    folder = SGLANG.environment / "older" / release if release in OTHERS else None
    if reason := SGLANG.why_not() or (
        "" if not folder or folder.exists() else f"no {folder}: make test-sglang-older"
    ):
        pytest.skip(reason)
    script = [SGLANG.environment / "bin" / "python", "-P", Path(__file__).with_name("sglang_contract.py")]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [*script, *([folder] if folder else [])],
        input=json.dumps(contract(release, tmp_path)),
        capture_output=True,
        text=True,
        env=env | {"OMP_NUM_THREADS": "1"},
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    answer = json.loads(ended.stdout.splitlines()[-1])
    assert answer["version"] == release
    strange, *faults = answer["faults"]
    assert strange.startswith("/generate: no_such_field is unknown there"), "the script finds nothing"
    assert not faults
