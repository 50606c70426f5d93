"""OpenAI's `/v1/responses`: its conversation, and the items and events of the answer."""

import json
from typing import Any

import pytest

from gleaner.actors.gateway.routes import ROUTES
from tests.actors.gateway.clients import plain_openai
from tests.actors.gateway.gateway_world import Letters, serving, with_status
from tests.actors.gateway.story import Story
from tests.actors.gateway.test_gateway_openai import ask, refused
from tests.actors.gateway.test_gateway_tools import CALL, PARAMETERS, script_of

TOOL = {"type": "function", "name": "weather", "parameters": PARAMETERS}


async def test_input_gives_a_message_and_nothing_is_stored() -> None:
    import openai  # a second: not in every worker

    async with serving(ROUTES, script_of("abc")) as world, plain_openai.client_of(world.url) as client:
        answer = await client.responses.create(model="tiny", input="hi", instructions="Be brief.", store=True)
        assert (answer.output_text, answer.status, answer.store) == ("abc", "completed", False)
        assert answer.usage is not None
        assert answer.usage.output_tokens == 3
        prompt = "".join(map(chr, world.requests.asked[0].prompt))
        assert prompt == "system: Be brief.\nuser: hi\nassistant: "
        with pytest.raises(openai.NotFoundError, match="not kept"):
            await client.responses.retrieve(answer.id)
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            await client.responses.create(model="tiny", input="hi", previous_response_id=answer.id)


async def test_stream_has_known_events_and_ends_with_the_response() -> None:
    async with serving(ROUTES, script_of("abcdefgh")) as world, plain_openai.client_of(world.url) as client:
        async with client.responses.stream(model="tiny", input="hi") as stream:
            events = [event async for event in stream]
            whole = await stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert (
        "".join(event.delta for event in events if event.type == "response.output_text.delta") == "abcdefgh"
    )
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(len(numbers)))
    assert whole.output_text == "abcdefgh"


async def test_tool_calls_are_items_whole_and_streamed() -> None:
    text = f"Well. <tool_call>{CALL}</tool_call>"
    async with serving(ROUTES, script_of(text)) as world, plain_openai.client_of(world.url) as client:
        whole = await client.responses.create(model="tiny", input="hi", tools=[TOOL])  # type: ignore[list-item]
        async with client.responses.stream(model="tiny", input="hi", tools=[TOOL]) as stream:  # type: ignore[list-item]
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_response()
    for answer in (whole, streamed):
        assert [item.type for item in answer.output] == ["message", "function_call"]
        call: Any = answer.output[1]
        assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Oslo"})
    assert kinds.index("response.output_item.done") < kinds.index("response.function_call_arguments.delta")


async def test_earlier_items_become_conversation_turns() -> None:
    shown: list[Any] = []

    class Seen(Letters):
        def chat(self, messages: Any, generation_prompt: bool = True, names: Any = None) -> str:
            shown.append(messages)
            return "x"

    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call_output", "call_id": "c", "output": "sunny"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
    ]
    async with serving(ROUTES, script_of("a"), vocabulary=Seen()) as world:
        await ask(world, "/v1/responses", input=items)
    turns = [(turn["role"], turn["content"]) for turn in shown[0]]
    assert turns == [("user", "hi"), ("assistant", ""), ("tool", "sunny"), ("assistant", "ok")]
    assert shown[0][1]["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}


async def test_cut_response_is_incomplete_and_schema_reaches_engine() -> None:
    format = {"type": "json_schema", "name": "s", "schema": {"type": "object"}}
    async with serving(ROUTES, with_status(script_of("abc"), "length")) as world:
        answer = await ask(world, "/v1/responses", input="hi", max_output_tokens=3, text={"format": format})
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        grammar = world.requests.asked[0].sampling.grammar
        assert grammar is not None
        assert json.loads(grammar.text) == {"type": "object"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("previous_response_id", "resp_1"),
        ("background", True),
        ("truncation", "auto"),
        ("conversation", "c"),
        ("tools", [{"type": "web_search"}]),
        ("input", []),
        ("input", [{"type": "image_generation_call"}]),
        ("no_such_field", 1),
    ],
)
async def test_unsupported_field_is_refused_by_name(name: str, value: object) -> None:
    async with serving(ROUTES, requests=Story(own_end=1)) as world:
        status, error = await refused(world, "/v1/responses", **{"input": "hi", name: value})
        assert status == 400
        assert error["param"].startswith(name)
