"""ModelCheck: whether two engines serve the same model, by their reported facts."""

from dataclasses import replace

import pytest

from gleaner.actors.engine.servers.foreign_facts import EngineFacts, differences
from gleaner.actors.gateway.model_check import MAX_REFUSED, ModelCheck

FIRST = EngineFacts(
    kind="sglang",
    slots=32,
    context_tokens=4096,
    model="qwen",
    vocabulary=151_936,
    root="/models/Qwen3-8B",
    architecture="Qwen3ForCausalLM",
    room_tokens=4090,
)
URL = "http://10.0.0.5:30000"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "llama"}, "its model is 'llama', the others serve 'qwen'"),
        ({"root": "/models/Qwen3-8B-math"}, "its model comes from '/models/Qwen3-8B-math'"),
        ({"architecture": "LlamaForCausalLM"}, "its architecture is LlamaForCausalLM"),
        ({"vocabulary": 32_000}, "its vocabulary has 32000 tokens, that of the others 151936"),
        (
            {"context_tokens": 2048, "room_tokens": 2042},
            "its context is 2048 tokens, that of the others 4096",
        ),
        ({"context_tokens": 8192, "room_tokens": 8186}, "its context is 8192 tokens"),
        ({"room_tokens": 1000}, "it takes 1000 tokens of prompt and response, the others take 4090"),
    ],
)
def test_engines_with_different_models_are_distinguished(change: dict[str, object], message: str) -> None:
    (found,) = differences(FIRST, replace(FIRST, **change))  # type: ignore[arg-type]
    assert found.startswith(message)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"slots": 8, "release": "SGLang 0.5.22", "routed_experts": True, "tokenizer": "/m"},
        {"root": "/mnt/other/Qwen3-8B/"},
        {"root": "", "architecture": "", "vocabulary": 0, "context_tokens": 0, "room_tokens": 0},
        {"room_tokens": 4096},
        {"kind": "vllm"},
    ],
)
def test_unreported_facts_make_no_difference(change: dict[str, object]) -> None:
    assert differences(FIRST, replace(FIRST, **change)) == []  # type: ignore[arg-type]


def test_every_difference_is_named() -> None:
    assert len(differences(FIRST, replace(FIRST, model="x", architecture="y", vocabulary=1))) == 3


def test_engine_is_refused_until_it_serves_the_model() -> None:
    models = ModelCheck(FIRST)
    assert models.look(URL, FIRST) == ""
    why = models.look(URL, replace(FIRST, model="llama"))
    assert models.refused == {URL: why}
    assert models.look(URL, FIRST) == ""
    assert models.refused == {}
    assert "it speaks the vllm protocol now" in models.look(URL, replace(FIRST, kind="vllm"), "sglang")
    assert models.forget(URL)
    assert not models.forget(URL)


def test_weight_folder_given_to_engines_matches_the_model() -> None:
    models, loaded = ModelCheck(FIRST), replace(FIRST, root="/weights/step-7")
    assert models.look(URL, loaded) != ""
    models.given("/weights/step-7")
    assert models.look(URL, loaded) == ""


def test_refused_engines_are_kept_up_to_a_limit() -> None:
    models, other = ModelCheck(FIRST), replace(FIRST, model="llama")
    for number in range(MAX_REFUSED + 1):
        models.look(f"http://10.0.0.5:{number}", other)
    assert len(models.refused) == MAX_REFUSED
    assert "http://10.0.0.5:0" not in models.refused
