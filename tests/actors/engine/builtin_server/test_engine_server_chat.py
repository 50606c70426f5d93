"""Chat at the builtin engine's server, with all layers in memory and with streamed ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from served import Client, Process, Serve, make_folder

from gleaner.actors.engine.builtin.engine_size import EngineSize
from gleaner.actors.engine.builtin.layer_budget import DoesNotFit, layer_bytes, sizes_of
from gleaner.actors.engine.builtin_server.process import Settings, loaded
from gleaner.actors.model.qwen3_config import Qwen3Config
from gleaner.actors.reward.prompts import Prompts
from gleaner.rlctl.__main__ import main

MESSAGES = [{"role": "user", "content": "Spell: fox"}]
RESERVE_MB = 20
"""Of a model whose layers alone take 21 MB, its cache 6 MB."""


async def post(client: Client, path: str, **body: object) -> tuple[int, Any]:
    async with client.post(path, json=body) as answer:
        return answer.status, json.loads(await answer.read())


def asked(**own: object) -> dict[str, object]:
    return {"model": "judge", "messages": MESSAGES, "max_tokens": 20, "seed": 7} | own


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose layers are most of its memory."""
    shape = {"num_hidden_layers": 12, "hidden_size": 256, "intermediate_size": 512}
    return make_folder(tmp_path_factory.mktemp("models") / "deep", 2, **shape)


async def test_chat_is_generate_with_the_template(serve: Serve, folder: Path) -> None:
    client = await serve(name="judge")
    status, answer = await post(client, "/v1/chat/completions", **asked())
    prompts = Prompts(folder)
    tokens = prompts.encode_text(prompts.chat(MESSAGES))
    params = {"max_new_tokens": 20, "sampling_seed": 7}
    _, plain = await post(client, "/generate", input_ids=tokens, sampling_params=params)
    (choice,) = answer["choices"]
    assert (status, choice["message"]) == (200, {"role": "assistant", "content": plain["text"]})
    assert choice["finish_reason"] == plain["meta_info"]["finish_reason"]["type"]
    made = plain["meta_info"]["completion_tokens"]
    assert answer["usage"] == {
        "prompt_tokens": len(tokens),
        "completion_tokens": made,
        "total_tokens": len(tokens) + made,
    }
    async with client.get("/v1/models") as listed:
        assert [one["id"] for one in (await listed.json())["data"]] == ["judge"]


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"model": "other"}, 404, "it serves 'judge', not 'other'"),
        ({"max_tokens": 10_000}, 400, "max_new_tokens: 10000 beside a prompt of"),
        ({"stream": True}, 400, "stream"),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
        ({"messages": [{"role": "user"}]}, 400, "content"),
    ],
)
async def test_chat_that_is_not_offered_is_refused_by_name(
    serve: Serve, change: dict[str, object], status: int, words: str
) -> None:
    client = await serve(name="judge")
    found, answer = await post(client, "/v1/chat/completions", **asked(**change))
    assert (found, words in answer["error"]["message"]) == (status, True), answer


async def test_streamed_layers_give_the_answers_of_resident_ones(serve: Serve, deep: Path) -> None:
    config = Qwen3Config.load(deep)
    layers_bytes = config.num_hidden_layers * layer_bytes(sizes_of(config))
    assert layers_bytes > RESERVE_MB << 20, "the layers alone are more than its memory"
    resident = await serve(deep, name="judge", exact=False)
    streamed = await serve(deep, name="judge", exact=False, reserve_mb=RESERVE_MB)
    for temperature in (0.0, 1.0):
        _, one = await post(resident, "/v1/chat/completions", **asked(temperature=temperature))
        status, other = await post(streamed, "/v1/chat/completions", **asked(temperature=temperature))
        assert status == 200
        assert one["choices"] == other["choices"]


def test_reserve_that_is_too_small_is_refused(deep: Path) -> None:
    with pytest.raises(DoesNotFit, match="reserve more"):
        loaded(Settings(model=deep, host="127.0.0.1", port=0, slots=64, max_tokens=4096, reserve_mb=1), 0)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"reserve_bytes": 1, "threads": 2}, "streamed to one thread"),
        ({"device": "cuda"}, "needs reserve_bytes"),
    ],
)
def test_size_that_cannot_stream_is_refused(own: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EngineSize(slots=1, max_tokens=8, **own)


@pytest.mark.realprocess
def test_command_streams_layers_within_its_reserve(deep: Path) -> None:
    small = ["--slots", "2", "--max-tokens", "128", "--served-model-name", "judge"]
    with Process(deep, *small, "--reserve-mb", "8") as server:
        status, answer = server.post("/v1/chat/completions", **asked())
        assert (status, answer["usage"]["completion_tokens"] > 0) == (200, True)


def test_command_refuses_a_reserve_that_is_too_small(deep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reserve = ["--slots", "64", "--reserve-mb", "1"]
    assert main(["engine", "serve", "--model", str(deep), "--listen", "127.0.0.1:0", *reserve]) == 2
    printed = capsys.readouterr().err
    assert "--reserve-mb 1: a pass needs" in printed
    assert "it fits with" in printed
