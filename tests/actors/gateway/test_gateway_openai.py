"""OpenAI's completions and chat: requests, answers, and refused fields."""

import asyncio
import json
from typing import Any

import pytest

from gleaner.actors.gateway.ask import End, NotReady, Piece
from gleaner.actors.gateway.routes import ROUTES
from tests.actors.gateway.gateway_world import World, pieces, serving
from tests.actors.gateway.story import Story, letter

ABC = [letter(position) for position in range(26)]


async def ask(world: World, path: str, **body: Any) -> dict[str, Any]:
    async with world.client.post(world.url + path, json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return answer  # type: ignore[no-any-return]


async def refused(world: World, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    async with world.client.post(world.url + path, json=body) as response:
        return response.status, (await response.json())["error"]


async def stream(world: World, path: str, **body: Any) -> list[dict[str, Any]]:
    """The chunks of a stream that ends as it should."""
    async with world.client.post(world.url + path, json={**body, "stream": True}) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        lines = [line[6:] for line in (await response.text()).split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_completion_has_text_tokens_log_probs_and_weight_versions() -> None:
    async with serving(ROUTES, requests=Story()) as world:
        answer = await ask(
            world, "/v1/completions", prompt="hello", max_tokens=5, logprobs=0, return_token_ids=True
        )
    choice = answer["choices"][0]
    assert (answer["object"], answer["model"], choice["text"]) == ("text_completion", "tiny", "abcde")
    assert choice["token_ids"] == ABC[:5]
    assert choice["prompt_token_ids"] == [ord(letter) for letter in "hello"]
    assert choice["logprobs"]["tokens"] == list("abcde")
    assert choice["logprobs"]["token_logprobs"] == [-0.125, -0.25, -0.375, -0.5, -0.625]
    assert choice["logprobs"]["top_logprobs"][:2] == [{"a": -0.125}, {"b": -0.25}]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]
    assert choice["finish_reason"] == "length"
    assert choice["weight_versions"] == [[3, 3], [4, 2]]
    assert [answer[f"weight_version{end}"] for end in ("", "_start", "_end")] == ["4", 3, 4]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([97, 98], ["ab"]),
        ([[97, 98], [99]], ["ab", "c"]),
    ],
)
async def test_prompt_may_be_text_texts_tokens_or_token_lists(prompt: object, prompts: list[str]) -> None:
    async with serving(ROUTES, requests=Story()) as world:
        answer = await ask(world, "/v1/completions", prompt=prompt, max_tokens=2, n=2)
        asked = sorted(world.requests.asked, key=lambda ask: ask.id)
    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * len(prompts)))
    assert ["".join(map(chr, ask.prompt)) for ask in asked] == [one for one in prompts for _ in range(2)]
    assert len({ask.id for ask in asked}) == len(asked)
    assert len({ask.seed for ask in asked}) == len(asked)


async def test_seed_differs_by_choice_and_repeats_by_call() -> None:
    async with serving(ROUTES, requests=Story()) as world:
        for _ in range(2):
            await ask(world, "/v1/completions", prompt="a", n=3, seed=7, max_tokens=1)
        seeds = [ask.seed for ask in sorted(world.requests.asked[:3], key=lambda ask: ask.id)]
        again = [ask.seed for ask in sorted(world.requests.asked[3:], key=lambda ask: ask.id)]
    assert seeds == again == [7, 8, 9]


async def test_chat_uses_the_template_and_returns_its_answer() -> None:
    turns = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    async with serving(ROUTES, requests=Story(own_end=3)) as world:
        answer = await ask(world, "/v1/chat/completions", messages=turns, logprobs=True, top_logprobs=0)
        asked = world.requests.asked[0]
    assert "".join(map(chr, asked.prompt)) == "user: hi\nassistant: "
    assert asked.max_new_tokens == 128, "the maximum of the served model is the default"
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "abc", "refusal": None}
    assert choice["logprobs"]["content"][1] == {
        "token": "b",
        "logprob": -0.25,
        "bytes": [98],
        "top_logprobs": [],
    }
    assert (choice["finish_reason"], answer["weight_version"]) == ("stop", "3")


async def test_stream_chunks_form_the_whole_and_end_with_usage() -> None:
    options = {"include_usage": True}
    async with serving(ROUTES, requests=Story()) as world:
        texts = await stream(world, "/v1/completions", prompt="a", max_tokens=4, n=2, stream_options=options)
        chats = await stream(
            world,
            "/v1/chat/completions",
            messages=[{"role": "user", "content": "a"}],
            max_tokens=4,
            logprobs=True,
            return_token_ids=True,
        )
    for index in (0, 1):
        own = [choice for chunk in texts for choice in chunk["choices"] if choice["index"] == index]
        assert "".join(choice["text"] for choice in own) == "abcd"
        assert [choice["finish_reason"] for choice in own][-2:] == [None, "length"]
    assert texts[-1]["choices"] == []
    assert texts[-1]["usage"]["completion_tokens"] == 8
    assert all(chunk["usage"] is None for chunk in texts[:-1])
    assert chats[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chats) == "abcd"
    assert [id for chunk in chats for id in chunk["choices"][0].get("token_ids", [])] == ABC[:4]
    assert chats[-1]["choices"][0]["finish_reason"] == "length"
    assert "usage" not in chats[-1]


@pytest.mark.parametrize("streamed", [False, True])
async def test_stop_string_ends_the_text_and_the_request(streamed: bool) -> None:
    """The stop string is split over tokens. The answer has its tokens, and no part of its text."""
    body = {"prompt": "a", "max_tokens": 20, "stop": ["efg", "xyz"], "return_token_ids": True, "logprobs": 0}
    async with serving(ROUTES, requests=Story()) as world:
        if streamed:
            chunks = await stream(world, "/v1/completions", **body)
            choices = [choice for chunk in chunks for choice in chunk["choices"]]
        else:
            choices = (await ask(world, "/v1/completions", **body))["choices"]
        aborted = world.requests.aborted
        assert [[ask.id] for ask in world.requests.asked] == aborted
    assert "".join(choice["text"] for choice in choices) == "abcd"
    assert [token for choice in choices for token in choice["token_ids"]] == ABC[:7]
    assert [lp for choice in choices if choice["logprobs"] for lp in choice["logprobs"]["tokens"]] == list(
        "abcdefg"
    )
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", "efg")
    assert choices[-1]["weight_versions"] == [[3, 3], [4, 4]]


async def test_finish_reason_uses_the_client_terms() -> None:
    async with serving(ROUTES) as world:
        for status, reason, why in (
            ("stop", "stop", None),
            ("length", "length", None),
            ("deadline", "length", "deadline"),
            ("abort", "abort", None),
        ):
            world.requests.script = [Piece([97], [-1.0], 3), End(status, ((3, 1),), 3, 3)]  # type: ignore[arg-type]
            choice = (await ask(world, "/v1/completions", prompt="a"))["choices"][0]
            assert (choice["finish_reason"], choice["stop_reason"]) == (reason, why)
        world.requests.script = pieces([97, 98], [1])
        choice = (await ask(world, "/v1/completions", prompt="a", stop_token_ids=[98]))["choices"][0]
        assert (choice["text"], choice["stop_reason"]) == ("a", 98)
        body = {"prompt": "a", "stop_token_ids": [98], "include_stop_str_in_output": True}
        assert (await ask(world, "/v1/completions", **body))["choices"][0]["text"] == "ab"


REFUSED = {
    "/v1/completions": [
        ("best_of", 3),
        ("logprobs", 21),
        ("suffix", "x"),
        ("logit_bias", {"x": 1.0}),
        ("logit_bias", {"5": 101.0}),
        ("use_beam_search", True),
        ("priority", 5),
        ("prompt_logprobs", 1),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a"}}),
        ("regex", ""),
        ("regex", "x" * (1 << 17)),
        ("no_such_field", 1),
        ("temperature", -1.0),
        ("top_p", 1.5),
        ("n", 0),
        ("max_tokens", 10**6),
        ("prompt", []),
        ("prompt", [97, "b"]),
        ("prompt", "x" * 65),
        ("prompt", "x" * 10**5),
        ("stream_options", {"continuous_usage_stats": True}),
        ("weight_version", {"min_version": 1, "exact_version": 2}),
        ("stop", [""]),
    ],
    "/v1/chat/completions": [
        ("top_logprobs", 3),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("continue_final_message", True),
        ("messages", []),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        ("chat_template", "{{ 1 }}"),
    ],
    "/inference/v1/generate": [
        ("stream", True),
        ("features", {}),
        ("priority", 1),
        ("sampling_params", {"logprobs": 5}),
        ("sampling_params", {"prompt_logprobs": 1}),
        ("token_ids", []),
    ],
    "/generate/": [
        ("logprobs", 5),
        ("images", ["x"]),
        ("structured_outputs_regex", "a+"),
        ("generation_kwargs", {"top_a": 1}),
        ("prompts", []),
    ],
}
GOOD: dict[str, dict[str, object]] = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/inference/v1/generate": {"token_ids": [97]},
    "/generate/": {"prompts": ["a"]},
}


async def test_unsupported_field_is_refused_by_name() -> None:
    async with serving(ROUTES, requests=Story(own_end=1)) as world:
        for path, fields in REFUSED.items():
            await ask(world, path, **GOOD[path])
            asked = len(world.requests.asked)
            for name, value in fields:
                status, error = await refused(world, path, **{**GOOD[path], name: value})
                assert status == 400, (path, name, value)
                assert error["param"].startswith(name), (path, name, value, error)
                assert name in error["message"]
                assert len(world.requests.asked) == asked, "no request is started"


async def test_unknown_model_is_not_found_and_own_name_is() -> None:
    async with serving(ROUTES, requests=Story(own_end=1)) as world:
        assert (await refused(world, "/v1/completions", prompt="a", model="big"))[0] == 404
        await ask(world, "/v1/completions", prompt="a", model="tiny")
        async with world.client.get(world.url + "/v1/models") as response:
            card = (await response.json())["data"][0]
        assert (card["id"], card["max_model_len"]) == ("tiny", 192)


async def test_unserved_version_gives_409_and_gate_is_forwarded() -> None:
    async with serving(ROUTES, requests=Story(own_end=1)) as world:
        await ask(world, "/v1/completions", prompt="a", weight_version={"min_version": 2})
        await ask(world, "/inference/v1/generate", token_ids=[97], weight_version={"exact_version": 3})
        assert [(ask.min_version, ask.exact_version) for ask in world.requests.asked] == [
            (2, None),
            (None, 3),
        ]
    async with serving(ROUTES, [NotReady(9, False, 4, True)]) as world:
        status, error = await refused(world, "/v1/completions", prompt="a", stream=True)
        assert (status, error["type"], error["applied"]) == (409, "WeightVersionNotReady", 4)


async def test_log_prob_that_is_no_number_fails_the_request() -> None:
    for wrong in (float("nan"), float("-inf"), -9999.0):
        async with serving(ROUTES, [Piece([97], [wrong], 3), End("stop", ((3, 1),), 3, 3)]) as world:
            status, error = await refused(world, "/v1/completions", prompt="a", logprobs=0)
            assert (status, error["retryable"]) == (503, True)
            body = {"token_ids": [97], "sampling_params": {"logprobs": 1}}
            assert (await refused(world, "/inference/v1/generate", **body))[0] == 503
            await ask(world, "/v1/completions", prompt="a")


async def test_failing_choice_ends_the_others() -> None:
    async with serving(ROUTES, requests=Story(pause_s=0.01, busy=".0")) as world:
        assert (await refused(world, "/v1/completions", prompt="a", n=3, max_tokens=100))[0] == 503
        assert len(world.requests.left) == 2


async def test_leaving_client_leaves_all_its_choices() -> None:
    async with serving(ROUTES, requests=Story(pause_s=1.0)) as world:
        for streamed in (True, False):
            world.requests.asked.clear()
            world.requests.left.clear()
            body = {"prompt": "a", "n": 2, "max_tokens": 120, "stream": streamed}
            asking = asyncio.create_task(ask(world, "/v1/completions", **body))
            async with asyncio.timeout(60):
                while len(world.requests.asked) < 2:
                    await asyncio.sleep(0.01)
            asking.cancel()
            async with asyncio.timeout(60):
                while len(world.requests.left) < 2:
                    await asyncio.sleep(0.01)
            assert len(world.requests.left) == 2


async def test_missing_tokenizer_serves_tokens_and_refuses_text() -> None:
    async with serving(ROUTES, requests=Story(own_end=2), words=False) as world:
        assert (await refused(world, "/v1/completions", prompt="a"))[0] == 501
        assert (await refused(world, "/v1/completions", prompt=[97]))[0] == 501
        assert (await refused(world, "/v1/completions", prompt=[97], stop="a", return_token_ids=True))[
            0
        ] == 501
        answer = await ask(world, "/v1/completions", prompt=[97], return_token_ids=True, logprobs=0)
        assert answer["choices"][0]["token_ids"] == ABC[:2]
        assert answer["choices"][0]["logprobs"]["tokens"] == ["token_id:97", "token_id:98"]
        await ask(world, "/inference/v1/generate", token_ids=[97])


async def test_tokens_and_text_are_converted_both_ways() -> None:
    async with serving(ROUTES) as world:
        answer = await ask(world, "/tokenize", model="tiny", prompt="hi", return_token_strs=True)
        assert answer == {"count": 2, "max_model_len": 192, "tokens": [104, 105], "token_strs": ["h", "i"]}
        turns = [{"role": "user", "content": "hi"}]
        rendered = await ask(world, "/v1/chat/completions/render", messages=turns)
        tokens = (await ask(world, "/tokenize", messages=turns))["tokens"]
        assert rendered["token_ids"] == tokens
        assert (await ask(world, "/detokenize", tokens=tokens))["prompt"] == "user: hi\nassistant: "
        assert (await refused(world, "/detokenize", tokens=[97] * 500))[1]["param"] == "tokens"
        assert (await refused(world, "/skyrl/v1/generate", token_ids=[97]))[0] == 501
