"""Tools of a conversation: the prompt of the model, the calls in its text, and demanded calls."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.gateway.openai.tools import (
    DEMANDED,
    HERMES,
    MISTRAL,
    Form,
    FunctionIs,
    Tool,
    ToolCall,
    ToolText,
    demanded,
    form_of,
)
from gleaner.actors.gateway.routes import ROUTES
from tests.actors.gateway.gateway_world import Letters, pieces, serving
from tests.actors.gateway.test_gateway_openai import ask, refused, stream

CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
MADE = ToolCall("weather", '{"city":"Oslo"}')
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
TURN = [{"role": "user", "content": "hi"}]


def parts_of(form: Form, text: str, cuts: list[int]) -> list[str | ToolCall]:
    """Parts of a text that is fed with these cuts; neighbouring texts are joined."""
    reader = ToolText(form, ["weather", "time"])
    bounds = [0, *sorted(cuts), len(text)]
    parts = [part for start, end in itertools.pairwise(bounds) for part in reader.feed(text[start:end])]
    joined: list[str | ToolCall] = []
    for part in [*parts, *reader.end()]:
        if joined and isinstance(part, str) and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (HERMES, f"Let me look.<tool_call>{CALL}</tool_call>", ["Let me look.", MADE]),
        (HERMES, f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{CALL}</tool_call>\n", [MADE, MADE]),
        (HERMES, "no call", ["no call"]),
        (HERMES, f"a \n<tool_call>{CALL}</tool_call> b ", ["a", MADE, " b"]),
        (HERMES, "a <tool_ca", ["a <tool_ca"]),
        (HERMES, '<tool_call>{"name": "weather"', ['<tool_call>{"name": "weather"']),
        (HERMES, f"<tool_call>{CALL}", [MADE]),
        (HERMES, "<tool_call>__import__('os')</tool_call>", ["<tool_call>__import__('os')</tool_call>"]),
        (HERMES, '<tool_call>{"name": "rm"}</tool_call>', ['<tool_call>{"name": "rm"}</tool_call>']),
        (HERMES, '<tool_call>{"name": "time"}</tool_call>', [ToolCall("time", "{}")]),
        (HERMES, "<tool_call>" + "[" * 4000 + "</tool_call>", ["<tool_call>" + "[" * 4000 + "</tool_call>"]),
        (MISTRAL, f"Well.[TOOL_CALLS][{CALL}, {CALL}]", ["Well.", MADE, MADE]),
        (MISTRAL, "[TOOL_CALLS] none", ["[TOOL_CALLS] none"]),
        (DEMANDED, f"[{CALL}]", [MADE]),
        (DEMANDED, f"[{CALL}", [f"[{CALL}"]),
    ],
)
@given(cuts=st.lists(st.integers(0, 60)))
def test_calls_are_found_at_any_cut_of_the_text(
    form: Form, text: str, expected: list[str | ToolCall], cuts: list[int]
) -> None:
    assert parts_of(form, text, [cut for cut in cuts if cut <= len(text)]) == expected


@given(st.text(alphabet='<tool_ca>/{}"name:[]', max_size=60), st.lists(st.integers(0, 60)))
def test_text_without_a_call_is_unchanged(text: str, cuts: list[int]) -> None:
    parts = parts_of(HERMES, text, [cut for cut in cuts if cut <= len(text)])
    assert "".join(part for part in parts if isinstance(part, str)) == text
    assert all(isinstance(part, str) for part in parts)


def test_call_form_is_that_of_the_chat_template() -> None:
    assert form_of("... <tool_call>{{ call }}</tool_call>") is HERMES
    assert form_of("[TOOL_CALLS]{{ calls | tojson }}") is MISTRAL
    assert form_of("<tool_call><function={{ name }}>") is None, "parameters of this form are not JSON"
    assert form_of("{{ messages }}") is None


def test_demanded_call_schema_has_definitions_at_the_top() -> None:
    shared = {"$defs": {"City": {"enum": ["Oslo"]}}, "properties": {"city": {"$ref": "#/$defs/City"}}}
    tool = Tool(type="function", function=FunctionIs(name="weather", parameters=shared))
    grammar = demanded([tool], "required", parallel=False)
    assert grammar is not None
    schema = json.loads(grammar.text)
    assert schema["$defs"] == shared["$defs"]
    assert (schema["minItems"], schema["maxItems"]) == (1, 1)
    call = schema["items"]["anyOf"][0]["properties"]
    assert call["name"]["enum"] == ["weather"]
    assert call["arguments"] == {"properties": shared["properties"]}
    assert demanded([tool], "auto", parallel=True) is None
    other = Tool(type="function", function=FunctionIs(name="b", parameters={"$defs": {"City": {}}}))
    with pytest.raises(BadAsk, match="not alike"):
        demanded([tool, other], "required", parallel=True)


def script_of(text: str) -> list[Any]:
    return list(pieces([ord(letter) for letter in text], list(range(0, len(text), 5))))


async def test_call_in_the_text_is_a_message_call() -> None:
    text = f"Well. <tool_call>{CALL}</tool_call>"
    async with serving(ROUTES, script_of(text)) as world:
        body = {"messages": TURN, "tools": [TOOL]}
        choice = (await ask(world, "/v1/chat/completions", **body))["choices"][0]
        chunks = await stream(world, "/v1/chat/completions", **body)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Well."
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city":"Oslo"}'}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == "Well."
    (streamed,) = [one for delta in deltas for one in delta.get("tool_calls", [])]
    assert (streamed["index"], streamed["function"]) == (0, call["function"])
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_demanded_call_is_a_grammar_for_the_whole_text() -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    async with serving(ROUTES, script_of(f"[{CALL}]")) as world:
        for choice in ("required", named):
            body = {"messages": TURN, "tools": [TOOL], "tool_choice": choice}
            message = (await ask(world, "/v1/chat/completions", **body))["choices"][0]["message"]
            assert message["content"] is None
            assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather"]
        plain = {"messages": TURN, "tools": [TOOL], "tool_choice": "none"}
        message = (await ask(world, "/v1/chat/completions", **plain))["choices"][0]["message"]
        assert message["content"] == f"[{CALL}]"
        asked = [one.sampling.grammar for one in world.requests.asked]
    assert [None if grammar is None else grammar.kind for grammar in asked] == ["json_schema"] * 2 + [None]
    assert all(one.whole for one in world.requests.asked[:2]), (
        "the client gets nothing early: the request may restart"
    )


async def test_tools_and_their_results_reach_the_chat_template() -> None:
    shown: list[Any] = []

    class Seen(Letters):
        def chat(self, messages: Any, generation_prompt: bool = True, names: Any = None) -> str:
            shown.append((messages, names))
            return "x"

    made = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    turns = [
        *TURN,
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c", "content": "sunny"},
    ]
    async with serving(ROUTES, script_of("ok"), vocabulary=Seen()) as world:
        await ask(world, "/v1/chat/completions", messages=turns, tools=[TOOL])
        broken = {**made, "function": {"name": "weather", "arguments": "{"}}
        turns[1] = {"role": "assistant", "tool_calls": [broken]}
        status, error = await refused(world, "/v1/chat/completions", messages=turns)
        assert (status, error["param"]) == (400, "messages.tool_calls.function.arguments")
    messages, names = shown[0]
    assert names["tools"][0]["function"]["parameters"] == PARAMETERS
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    assert messages[2] == {"role": "tool", "content": "sunny", "tool_call_id": "c"}


async def test_tools_are_refused_without_a_known_call_form() -> None:
    class Plain(Letters):
        template = "{{ messages }}"

    async with serving(ROUTES, script_of("ok"), vocabulary=Plain()) as world:
        status, error = await refused(world, "/v1/chat/completions", messages=TURN, tools=[TOOL])
        assert (status, error["param"]) == (400, "tools")
        for tools in ([TOOL, TOOL], [{**TOOL, "type": "web_search"}]):
            assert (await refused(world, "/v1/chat/completions", messages=TURN, tools=tools))[0] == 400
