"""Fields of OpenAI's calls: what each requests from an engine, and its part of the answer."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gleaner.actors.gateway.ask import End, Piece, Routed
from gleaner.actors.gateway.routes import ROUTES
from gleaner.actors.protocol.score_rows import Score, Scores, packed, unpacked
from tests.actors.gateway.gateway_world import Letters, pieces, serving
from tests.actors.gateway.story import Story
from tests.actors.gateway.test_gateway_openai import ask, refused, stream

TURN = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
ANY_OBJECT = ("json_schema", {"type": "object"})
HARMLESS = {
    "store": True,
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "user": "me",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
}
OF_CHAT = {"reasoning_effort": "low", "verbosity": "low", "parallel_tool_calls": True, "modalities": ["text"]}


async def test_fields_without_effect_are_accepted() -> None:
    async with serving(ROUTES, requests=Story(own_end=2)) as world:
        plain = await ask(world, "/v1/completions", prompt="a", seed=1, request_id="r")
        taken = await ask(world, "/v1/completions", prompt="a", seed=1, request_id="r", **HARMLESS)
        assert taken["choices"] == plain["choices"]
        await ask(world, "/v1/chat/completions", messages=TURN, **HARMLESS, **OF_CHAT)
        first, second, _ = world.requests.asked
        assert replace(first, id="") == replace(second, id="")


@pytest.mark.parametrize(
    ("path", "fields", "kind", "text"),
    [
        ("chat/completions", {"response_format": {"type": "json_object"}}, *ANY_OBJECT),
        ("chat/completions", {"response_format": JSON_SCHEMA}, "json_schema", SCHEMA),
        ("completions", {"response_format": JSON_SCHEMA}, "json_schema", SCHEMA),
        ("completions", {"regex": "a+"}, "regex", "a+"),
        ("completions", {"ebnf": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
        ("completions", {"guided_json": SCHEMA}, "json_schema", SCHEMA),
        ("completions", {"guided_json": json.dumps(SCHEMA)}, "json_schema", SCHEMA),
        ("completions", {"guided_regex": "b"}, "regex", "b"),
        ("completions", {"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA),
        ("completions", {"structured_outputs": {"json_object": True}}, *ANY_OBJECT),
        ("completions", {"structured_outputs": {"choice": ['a"', "b"]}}, "ebnf", 'root ::= "a\\"" | "b"'),
    ],
)
async def test_response_format_becomes_a_grammar_for_the_engine(
    path: str, fields: dict[str, Any], kind: str, text: object
) -> None:
    body = {"messages": TURN} if path.startswith("chat") else {"prompt": "a"}
    async with serving(ROUTES, requests=Story(own_end=2)) as world:
        await ask(world, f"/v1/{path}", **body, **fields)
        await stream(world, f"/v1/{path}", **body, **fields)
        whole, streamed = world.requests.asked
    grammar = whole.sampling.grammar
    assert grammar is not None
    assert grammar.kind == kind
    assert (json.loads(grammar.text) if kind == "json_schema" else grammar.text) == text
    assert whole.whole, "the request may restart: the client gets nothing before the end"
    assert not streamed.whole, "a stream is sent as it arrives"


async def test_two_formats_conflict_and_text_sets_none() -> None:
    async with serving(ROUTES, requests=Story(own_end=2)) as world:
        both = {"regex": "a", "response_format": {"type": "json_object"}}
        assert (await refused(world, "/v1/completions", prompt="a", **both))[1]["param"] == "regex"
        await ask(world, "/v1/completions", prompt="a", response_format={"type": "text"})
        assert world.requests.asked[0].sampling.grammar is None


async def test_biases_reach_the_engine_by_token_id() -> None:
    async with serving(ROUTES, requests=Story(own_end=2)) as world:
        await ask(world, "/v1/completions", prompt="a", logit_bias={"5": 1.5, "7": -100, "8": 0})
        assert world.requests.asked[0].sampling.logit_bias == ((5, 1.5), (7, -100.0))


def scored(prompt: int, tokens: str, top: int, *, temperature: float = 1.0) -> list[Piece | End]:
    """These tokens with the rows that an engine reports: at each place the token there, then others that
    are less likely by 1, 2, ... in the model, whatever the temperature."""
    made = [item for item in pieces([ord(letter) for letter in tokens], [1])]
    logprobs = [-(number + 1) / 8 for number in range(len(tokens))]
    places = [*(-0.5 for _ in range(prompt - 1)), *logprobs]
    letters = [98] * (prompt - 1) + [ord(letter) for letter in tokens]
    scores = [
        Score(own, tuple((letter + step, own - step) for step in range(top)))
        for own, letter in zip(places, letters, strict=True)
    ]
    rows = np.frombuffer(packed(scores, top), "<i4").reshape(len(scores), -1)
    assert isinstance(made[-1], End)
    return [*made[:-1], replace(made[-1], experts=Routed(rows))]


def test_score_rows_survive_packing() -> None:
    scores = [Score(-0.5, ((3, -0.25), (9, -7.5))), Score(0.0, ((0, 0.0), (1, -1.0)))]
    rows = np.frombuffer(packed(scores, 2), "<i4").reshape(2, 5)
    assert unpacked(rows) == scores
    assert unpacked(np.frombuffer(packed([Score(-2.0)], 0), "<i4").reshape(1, 1)) == [Score(-2.0)]


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
async def test_chat_top_log_probs_follow_the_temperature(temperature: float) -> None:
    prompt = len("user: hi\nassistant: ")
    body = {"messages": TURN, "logprobs": True, "top_logprobs": 2, "temperature": temperature}
    async with serving(ROUTES, scored(prompt, "xyz", 2)) as world:
        content = (await ask(world, "/v1/chat/completions", **body))["choices"][0]["logprobs"]["content"]
        chunks = await stream(world, "/v1/chat/completions", **body)
        assert [one.scores for one in world.requests.asked] == [Scores(top=2)] * 2
    assert [one["token"] for one in content] == list("xyz")
    step = 1.0 / (temperature or 1.0)
    assert content[1]["top_logprobs"] == [
        {"token": "y", "logprob": -0.25, "bytes": [121]},
        {"token": "z", "logprob": -0.25 - step, "bytes": [122]},
    ]
    in_chunks = [
        one for chunk in chunks for one in (chunk["choices"][0]["logprobs"] or {}).get("content", [])
    ]
    assert in_chunks == content, "a stream has them once they are known"
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "xyz"


@pytest.mark.parametrize("given", ["abb", [97, 98, 98]])
async def test_echoed_prompt_has_text_and_log_probs(given: object) -> None:
    body = {"prompt": given, "max_tokens": 3, "echo": True, "logprobs": 1, "return_token_ids": True}
    async with serving(ROUTES, scored(3, "xyz", 1)) as world:
        choice = (await ask(world, "/v1/completions", **body))["choices"][0]
        (chunk,) = [
            one for one in await stream(world, "/v1/completions", **body) if one["choices"][0]["text"]
        ]
        assert world.requests.asked[0].scores == Scores(top=1, prompt=True)
    assert choice["text"] == chunk["choices"][0]["text"] == "abbxyz"
    assert choice["token_ids"] == [120, 121, 122], "those of the response"
    logprobs = choice["logprobs"]
    assert chunk["choices"][0]["logprobs"] == logprobs
    assert logprobs["tokens"] == list("abbxyz")
    assert logprobs["token_logprobs"] == [None, -0.5, -0.5, -0.125, -0.25, -0.375]
    assert logprobs["top_logprobs"][:3] == [None, {"b": -0.5}, {"b": -0.5}]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]


async def test_prompt_alone_is_echoed_with_log_probs() -> None:
    """The engine has to make one token; the answer does not contain this token."""
    body = {"prompt": "abb", "max_tokens": 0, "echo": True, "logprobs": 1}
    async with serving(ROUTES, scored(3, "x", 1)) as world:
        answer = await ask(world, "/v1/completions", **body)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abb", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert choice["logprobs"]["top_logprobs"] == [None, {"b": -0.5}, {"b": -0.5}]
    assert answer["usage"]["completion_tokens"] == 0


async def test_echo_without_log_probs_requests_nothing_of_an_engine() -> None:
    async with serving(ROUTES, requests=Story(own_end=2)) as world:
        body = {"prompt": ["ab", "c"], "echo": True, "n": 2}
        answer = await ask(world, "/v1/completions", **body)
        chunks = await stream(world, "/v1/completions", **body)
        assert all(one.scores is None for one in world.requests.asked)
    assert [choice["text"] for choice in answer["choices"]] == ["abab", "abab", "cab", "cab"]
    texts = ["", "", "", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["abab", "abab", "cab", "cab"]


class Middle(Letters):
    """A tokenizer with tokens for fill-in-the-middle."""

    def token_to_id(self, token: str) -> int | None:
        known = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3}
        return known.get(token, super().token_to_id(token))


async def test_suffix_follows_the_prompt_in_model_tokens() -> None:
    async with serving(ROUTES, requests=Story(own_end=2), vocabulary=Middle()) as world:
        await ask(world, "/v1/completions", prompt="ab", suffix="c")
        assert list(world.requests.asked[0].prompt) == [1, 97, 98, 2, 99, 3]
    async with serving(ROUTES, requests=Story(own_end=2)) as world:
        status, error = await refused(world, "/v1/completions", prompt="ab", suffix="c")
        assert (status, error["param"]) == (400, "suffix")
