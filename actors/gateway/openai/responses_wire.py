"""Structs of OpenAI's `/v1/responses`: response, items, stream events. Pure."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gleaner.actors.gateway.openai.wire import Stamps, TokenLogprob

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, kw_only=True):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[str] = []
    logprobs: list[TokenLogprob] = []


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    status: Status
    content: list[OutputText]


class OutputCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A tool call; arguments: a JSON object, as text."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


OutputItem = OutputMessage | OutputCall


class Details(msgspec.Struct, kw_only=True):
    """cached_tokens: unknown, as the engine may change during a request; reasoning_tokens: not distinguished
    from others."""

    cached_tokens: int | UnsetType = UNSET
    reasoning_tokens: int | UnsetType = UNSET


class ResponseUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: Details
    output_tokens: int
    output_tokens_details: Details
    total_tokens: int


class Incomplete(msgspec.Struct, kw_only=True):
    reason: str


class Response(Stamps, kw_only=True):
    """Repeats the settings of the request, as OpenAI's clients expect."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    incomplete_details: Incomplete | None = None
    error: None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    store: bool = False
    temperature: float | None = None
    text: dict[str, Any] = {}
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: Literal["disabled"] = "disabled"


class Event(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An event of a stream; `type` determines which of these fields it has."""

    type: str
    sequence_number: int
    response: Response | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    part: OutputText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
