"""ResponseRequest: body of OpenAI's `/v1/responses`, and its conversion to chat.

Owns the fields. No response is kept here: a client sends the whole conversation each time, and a reference to
an earlier response is refused by its name. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.gateway.calls import VersionGate
from gleaner.actors.gateway.openai.formats import (
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    ResponseFormat,
    TextFormat,
)
from gleaner.actors.gateway.openai.requests import CallMade, ChatRequest, Message, Taken
from gleaner.actors.gateway.openai.tools import (
    Choice,
    FunctionIs,
    Name,
    NamedFunction,
    NamedTool,
    Tool,
)
from gleaner.actors.gateway.openai.wire import FunctionCalled
from gleaner.actors.protocol.score_rows import MOST_TOP

LOGPROBS = "message.output_text.logprobs"
NOT_KEPT = "responses are not kept here: send the whole conversation as input"


class Part(msgspec.Struct, kw_only=True):
    """Part of a message, or of a tool's output."""

    type: Literal["input_text", "output_text", "text", "refusal"]
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct, kw_only=True):
    """Item of the input: a message, a call that was made, the output of a call, or the model's reasoning,
    which is ignored."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class FunctionTool(FunctionIs, kw_only=True):
    """Tools of a platform (search, code, files) are not offered."""

    type: Literal["function"]


class NamedFunctionTool(msgspec.Struct, kw_only=True):
    type: Literal["function"]
    name: Name


class NamedSchema(JsonSchema, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON of a schema."""


class TextIs(msgspec.Struct, kw_only=True):
    """`text`: the format of the answer. verbosity: accepted; it changes nothing."""

    format: TextFormat | JsonObjectFormat | NamedSchema | None = None
    verbosity: Taken = None


class ResponseRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `/v1/responses`. Fields whose type is null alone are not offered."""

    input: str | Annotated[list[Item], Meta(min_length=1)]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: float | None = None
    stream: bool | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextIs | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_TOP)] | None = None
    metadata: dict[str, Any] | None = None
    store: Taken = None
    reasoning: Taken = None
    service_tier: Taken = None
    user: Taken = None
    safety_identifier: Taken = None
    prompt_cache_key: Taken = None
    prompt_cache_retention: Taken = None
    prompt_cache_options: Taken = None
    max_tool_calls: Taken = None
    stream_options: Taken = None
    truncation: str | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: None = None
    prompt: None = None
    context_management: None = None
    session_id: str | None = None
    weight_version: VersionGate | None = None

    @property
    def logprobs(self) -> bool:
        """Whether log-probs are returned."""
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    def as_chat(self) -> ChatRequest:
        """The same conversation as a chat request. Raises BadAsk."""
        for name, why in self._not_offered():
            raise BadAsk(why, name)
        tools = [
            Tool(
                type="function",
                function=FunctionIs(name=tool.name, description=tool.description, parameters=tool.parameters),
            )
            for tool in self.tools or ()
        ]
        return ChatRequest(
            messages=list(self._messages()),
            model=self.model,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stream=self.stream,
            tools=tools or None,
            tool_choice=self._choice(),
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=None if self.text is None else _format(self.text),
            logprobs=self.logprobs,
            top_logprobs=self.top_logprobs,
            session_id=self.session_id,
            weight_version=self.weight_version,
        )

    def _choice(self) -> Choice:
        if isinstance(self.tool_choice, NamedFunctionTool):
            return NamedTool(type="function", function=NamedFunction(name=self.tool_choice.name))
        return self.tool_choice

    def _messages(self) -> Iterator[Message]:
        if self.instructions is not None:
            yield Message(role="system", content=self.instructions)
        if isinstance(self.input, str):
            yield Message(role="user", content=self.input)
            return
        calls: list[CallMade] = []
        for item in self.input:
            if item.type == "function_call":
                calls.append(_call(item))
                continue
            if calls:
                yield Message(role="assistant", tool_calls=calls)
                calls = []
            if item.type == "function_call_output":
                if item.call_id is None:
                    raise BadAsk("is required", "input.call_id")
                yield Message(role="tool", tool_call_id=item.call_id, content=_text(item.output))
            elif item.type == "message":
                if item.role is None:
                    raise BadAsk("is required", "input.role")
                yield Message(role=item.role, content=_text(item.content))
        if calls:
            yield Message(role="assistant", tool_calls=calls)

    def _not_offered(self) -> Iterator[tuple[str, str]]:
        if self.previous_response_id:
            yield "previous_response_id", f"not offered: {NOT_KEPT}"
        if self.background:
            yield "background", f"not offered: {NOT_KEPT}"
        if self.truncation not in (None, "disabled"):
            yield "truncation", "not offered: a conversation is read whole, or refused; send disabled"


def _call(item: Item) -> CallMade:
    if item.call_id is None or item.name is None:
        raise BadAsk("expected call_id, name and arguments", "input")
    return CallMade(
        id=item.call_id, function=FunctionCalled(name=item.name, arguments=item.arguments or "{}")
    )


def _text(content: str | list[Part] | None) -> str:
    if isinstance(content, list):
        return "\n".join(part.text or part.refusal or "" for part in content)
    return content or ""


def _format(text: TextIs) -> ResponseFormat | None:
    if isinstance(text.format, NamedSchema):
        one = text.format
        return JsonSchemaFormat(json_schema=JsonSchema(name=one.name, schema=one.schema, strict=one.strict))
    return text.format
