"""SGLang's `/generate`: bodies as its clients send them, answers as they read them, over real HTTP."""

import asyncio
import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.gateway.ask import BadAsk, Busy, End, NotReady, Piece
from gleaner.actors.gateway.call_texts import reader
from gleaner.actors.gateway.calls import read
from gleaner.actors.gateway.choices import follow
from gleaner.actors.gateway.sglang.answers import Answer, AnswerContent, GenerateIs
from gleaner.actors.gateway.sglang.routes import ROUTES
from gleaner.actors.gateway.sglang.wire import GenerateBody, SamplingBody, check_served
from gleaner.actors.protocol.sampling_params import Grammar
from tests.actors.gateway.gateway_world import (
    FakeRequests,
    Letters,
    World,
    pieces,
    serving,
    with_status,
)

SLIME = {
    "sampling_params": {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": 100,
        "stop": None,
        "stop_token_ids": None,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    },
    "return_logprob": True,
    "input_ids": [1, 2, 3],
}
AREAL = {
    "input_ids": [1, 2, 3],
    "image_data": None,
    "sampling_params": {
        "top_p": 0.9,
        "top_k": 1073741824,
        "max_new_tokens": 16,
        "temperature": 0.7,
        "stop_token_ids": [0],
        "ignore_eos": False,
        "skip_special_tokens": False,
        "frequency_penalty": 0.0,
    },
    "return_logprob": True,
    "stream": False,
}
ROLL = {
    "rid": "roll-1",
    "input_ids": [1, 2, 3],
    "sampling_params": {"temperature": 1.0, "max_new_tokens": 10},
    "return_logprob": True,
}
HELLO = [ord(letter) for letter in "hello"] + [0]


async def post(world: World, body: object) -> tuple[int, dict[str, object]]:
    async with world.client.post(world.url + "/generate", json=body) as response:
        return response.status, await response.json()


async def stream(world: World, body: dict[str, object]) -> list[dict[str, object]]:
    async with world.client.post(world.url + "/generate", json=body | {"stream": True}) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream"
        events = (await response.text()).removesuffix("\n\n").split("\n\n")
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


async def test_answer_has_every_field_that_sglang_clients_read() -> None:
    async with serving(ROUTES, pieces(HELLO, [2, 3])) as world:
        status, answer = await post(world, SLIME | {"rid": "one"})
    latency = answer["meta_info"].pop("e2e_latency")  # type: ignore[attr-defined]
    assert status == 200
    assert 0 <= latency < 10
    assert answer == {
        "text": "hello",
        "output_ids": HELLO,
        "meta_info": {
            "id": "one",
            "prompt_tokens": 3,
            "finish_reason": {"type": "stop", "matched": 0},
            "weight_version": "3",
            "weight_version_start": 3,
            "weight_version_end": 3,
            "weight_versions": [{"version": "3", "start": 0, "end": 6}],
            "num_retractions": 0,
            "completion_tokens": 6,
            "cached_tokens": 0,
            "input_token_logprobs": [],
            "output_token_logprobs": [[-(n + 1) / 8, token, None] for n, token in enumerate(HELLO)],
            "output_token_logprobs_length": 6,
        },
    }
    (asked,) = world.requests.asked
    assert (asked.id, asked.named, asked.max_new_tokens, list(asked.prompt)) == ("one", True, 100, [1, 2, 3])


async def test_stream_is_cumulative_and_ends_as_the_answer() -> None:
    script = [
        Piece([104, 101], [-0.5, -1.0], 3),
        0.02,
        Piece([108], [-1.5], 4),
        End("length", ((3, 2), (4, 1)), 3, 4),
    ]
    async with serving(ROUTES, script) as world:
        events = await stream(world, SLIME)
        _, whole = await post(world, SLIME)
    assert [event["text"] for event in events] == ["he", "hel", "hel"]
    assert [event["output_ids"] for event in events] == [[104, 101], [104, 101, 108], [104, 101, 108]]
    metas = [event["meta_info"] for event in events]
    assert [meta["finish_reason"] for meta in metas] == [None, None, {"type": "length", "length": 3}]  # type: ignore[index]
    assert [meta["weight_version"] for meta in metas] == ["3", "4", "4"]  # type: ignore[index]
    assert metas[0]["output_token_logprobs"] == [[-0.5, 104, None], [-1.0, 101, None]]  # type: ignore[index]
    for answer in (events[-1], whole):
        del answer["meta_info"]["e2e_latency"], answer["meta_info"]["id"]  # type: ignore[attr-defined]
    assert events[-1] == whole
    assert whole["meta_info"]["weight_versions"] == [  # type: ignore[index]
        {"version": "3", "start": 0, "end": 2},
        {"version": "4", "start": 2, "end": 3},
    ]


async def test_bodies_of_areal_and_roll_are_accepted() -> None:
    async with serving(ROUTES, pieces(HELLO, [])) as world:
        for body in (AREAL, ROLL, ROLL):
            status, answer = await post(world, body)
            assert status == 200
            assert len(answer["meta_info"]["output_token_logprobs"]) == 6  # type: ignore[index]
    areal, roll, again = world.requests.asked
    assert (areal.sampling.top_k, areal.sampling.top_p, areal.sampling.stop_token_ids) == (-1, 0.9, (0,))
    assert areal.temperature == 0.7
    assert roll == again, "the same id is the same request"


async def test_answer_without_log_probs_and_with_text_prompt() -> None:
    async with serving(ROUTES, pieces(HELLO, [])) as world:
        _, answer = await post(world, {"text": "ab", "sampling_params": {"sampling_seed": 5}})
        assert "output_token_logprobs" not in answer["meta_info"]  # type: ignore[operator]
        status, _ = await post(world, {})
        assert status == 400
    (asked,) = world.requests.asked
    assert (list(asked.prompt), asked.seed, asked.max_new_tokens) == ([97, 98], 5, 128)


async def test_batch_is_answered_in_prompt_order() -> None:
    async with serving(ROUTES, pieces(HELLO, [])) as world:
        world.requests.scripts = {"b.0": [0.05, *pieces([97, 0], [])], "b.1": pieces([98, 0], [])}
        body = {"rid": "b", "input_ids": [[1], [2, 2]], "sampling_params": {"max_new_tokens": 5}}
        _, answers = await post(world, body)
        assert [answer["text"] for answer in answers] == ["a", "b"]
        assert [answer["meta_info"]["id"] for answer in answers] == ["b.0", "b.1"]  # type: ignore[index]
        assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [1, 2]  # type: ignore[index]
        events = await stream(world, body)
        ends = {event["index"]: event["text"] for event in events if event["meta_info"]["finish_reason"]}  # type: ignore[index]
        assert ends == {0: "a", 1: "b"}
        _, twice = await post(world, {"input_ids": [1], "sampling_params": {"n": 2}})
        assert len(twice) == 2
        status, _ = await post(world, {"rid": ["x"], "input_ids": [[1], [2]]})
        assert status == 400


async def test_stop_string_across_two_pieces_ends_the_response() -> None:
    script: list[Piece | End] = [
        Piece([ord(letter) for letter in part], [-1.0] * len(part), 3)
        for part in ("one ST", "OP two", "more")
    ]
    async with serving(ROUTES, [*script, End("length", ((3, 16),), 3, 3)]) as world:
        for keep, text in ((True, "one STOP"), (False, "one ")):
            params = {"stop": ["STOP", "never"], "no_stop_trim": keep}
            _, answer = await post(
                world, {"input_ids": [1], "sampling_params": params, "return_logprob": True}
            )
            meta = answer["meta_info"]
            assert answer["text"] == text
            assert answer["output_ids"] == [ord(letter) for letter in "one STOP"]
            assert meta["finish_reason"] == {"type": "stop", "matched": "STOP"}  # type: ignore[index]
            assert meta["weight_versions"] == [{"version": "3", "start": 0, "end": 8}]  # type: ignore[index]
            assert len(meta["output_token_logprobs"]) == 8  # type: ignore[index]
    assert len(world.requests.aborted) == 2, "the engine need not go on"


async def test_abort_keeps_its_tokens_and_deadline_is_a_length() -> None:
    cut = pieces(HELLO[:3], [])
    async with serving(ROUTES, with_status(cut, "abort")) as world:
        _, answer = await post(world, SLIME)
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"  # type: ignore[index]
        assert len(answer["meta_info"]["output_token_logprobs"]) == 3  # type: ignore[index]
        world.requests.script = [End("abort")]
        _, answer = await post(world, SLIME)
        assert answer["meta_info"]["output_token_logprobs"] == []  # type: ignore[index]
        world.requests.script = with_status(cut, "deadline")
        _, answer = await post(world, SLIME)
        reason = answer["meta_info"]["finish_reason"]  # type: ignore[index]
        assert reason == {"type": "length", "length": 3, "message": "its deadline passed"}
        world.requests.script = [End("deadline")]
        status, answer = await post(world, SLIME)
        assert (status, answer["error"]["retryable"]) == (503, True)  # type: ignore[index]


async def test_gate_is_forwarded_and_unmet_gate_gives_409() -> None:
    async with serving(ROUTES, [NotReady(9, False, 4, True)]) as world:
        body = SLIME | {"weight_version": {"min_version": 9}}
        async with world.client.post(world.url + "/generate", json=body) as response:
            answer = await response.json()
            assert (response.status, response.headers["Retry-After"]) == (409, "1")
        assert (answer["type"], answer["target_version"], answer["applied"]) == (
            "WeightVersionNotReady",
            9,
            4,
        )
        status, _ = await post(world, SLIME | {"weight_version": {"min_version": 9, "exact_version": 9}})
        assert status == 400
        world.requests.script = [Busy("nobody there")]
        status, answer = await post(world, SLIME)
        assert (status, answer["error"]["type"]) == (503, "EngineUnavailable")  # type: ignore[index]
    assert world.requests.asked[0].min_version == 9


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"image_data": ["data:..."]}, "image_data"),
        ({"return_routed_experts": True}, "return_routed_experts"),
        ({"top_logprobs_num": 2}, "top_logprobs_num"),
        ({"logprob_start_len": 0, "lora_path": "a"}, "lora_path"),
        ({"priority": 3}, "priority"),
        ({"sampling_params": {"stop_regex": "a*"}}, "sampling_params.stop_regex"),
        ({"sampling_params": {"custom_params": {"a": 1}}}, "sampling_params.custom_params"),
        ({"sampling_params": {"top_p": 2}}, "top_p"),
        ({"sampling_params": {"max_new_tokens": 1000}}, "sampling_params.max_new_tokens"),
        ({"sampling_params": {"colour": 1}}, "sampling_params.colour"),
        ({"input_ids": [-1]}, "input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [1, [2]]}, "input_ids"),
        ({"rid": "a/b"}, "rid"),
        ({"nonsense": None}, "nonsense"),
    ],
)
async def test_unsupported_field_is_refused_by_name(more: dict[str, object], name: str) -> None:
    async with serving(ROUTES, pieces(HELLO, [])) as world:
        status, answer = await post(world, SLIME | more)
    assert status == 400
    assert answer["error"]["param"] == name  # type: ignore[index]
    assert answer["error"]["retryable"] is False  # type: ignore[index]
    assert not world.requests.asked


def test_empty_unsupported_fields_are_accepted() -> None:
    names = [
        name for name in GenerateBody.__struct_fields__ if name.startswith(("image", "lora", "return_hid"))
    ]
    assert len(names) == 4
    for value in ("null", "false", "[]", "{}", '""', "0", " [ ] "):
        raw = "".join(f',"{name}":{value}' for name in names)
        check_served(read(f'{{"input_ids":[1]{raw}}}'.encode(), GenerateBody))
    with pytest.raises(BadAsk, match="image_data"):
        check_served(read(b'{"image_data":[1]}', GenerateBody))
    check_served(read(b'{"n":2}', SamplingBody), "sampling_params.")


@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=24),
    cuts=st.lists(st.integers(0, 24), max_size=6),
    stops=st.lists(st.text("ab é", min_size=1, max_size=3), max_size=2),
    logprobs=st.booleans(),
)
def test_final_body_is_independent_of_the_cuts(
    text: str, cuts: Sequence[int], stops: list[str], logprobs: bool
) -> None:
    tokens = [ord(letter) for letter in text]

    async def final(cuts: Sequence[int]) -> GenerateIs:
        requests, parts = FakeRequests(pieces(tokens, cuts)), []
        answer = Answer("a", [1], AnswerContent(logprobs=logprobs, texts=True))
        ask = read(b'{"input_ids":[1]}', GenerateBody)
        assert ask.input_ids == [1]
        from tests.actors.gateway.test_gateway_actor import ask as ask_of

        one = reader(Letters(), stops, ())
        async for item in follow(requests, [ask_of("a")], [one]):
            if hasattr(item, "tokens"):
                answer.add(item)
                parts.append(msgspec.json.decode(answer.part()))
            else:
                answer.end(item)
        whole = msgspec.json.decode(answer.whole(1.0), type=GenerateIs)
        for part in parts:
            assert whole.text.startswith(part["text"])
            assert whole.output_ids[: len(part["output_ids"])] == part["output_ids"]
        return whole

    assert asyncio.run(final(cuts)) == asyncio.run(final([]))


@pytest.mark.parametrize("kind", ["json_schema", "regex", "ebnf", "structural_tag"])
async def test_grammar_and_biases_are_forwarded_to_the_engine(kind: str) -> None:
    params = {kind: "x", "logit_bias": {"5": -3.5}}
    async with serving(ROUTES, pieces(HELLO, [])) as world:
        for streamed in (False, True):
            body = {"input_ids": [1], "sampling_params": params, "stream": streamed}
            async with world.client.post(world.url + "/generate", json=body) as response:
                assert response.status == 200
        status, answer = await post(world, {"input_ids": [1], "sampling_params": {"regex": "a", "ebnf": "b"}})
        assert (status, answer["error"]["param"]) == (400, "sampling_params.ebnf")  # type: ignore[index]
        whole, one = world.requests.asked
    assert whole.sampling.grammar == Grammar(kind=kind, text="x")
    assert whole.sampling.logit_bias == ((5, -3.5),)
    assert (whole.whole, one.whole) == (True, False)
