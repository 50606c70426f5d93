"""OpenAI answers: structs of completions and chat, whole ones and stream chunks.

Owns their shape, with vLLM's additions (`token_ids`, `stop_reason`) and the stamps of versions.
`answers` assembles them. Pure.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

Versions = list[tuple[int, int]]
"""(version, number of tokens), in order."""
ChatReason = Literal["stop", "length", "abort", "tool_calls"]


class Usage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Stamps(msgspec.Struct, kw_only=True):
    """Versions of the weights that made the tokens of the answer: the newest, that of the first tokens and
    that of the last ones. Unset before the first token."""

    weight_version: str | UnsetType = UNSET
    weight_version_start: int | UnsetType = UNSET
    weight_version_end: int | UnsetType = UNSET


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """One entry per token in each list; the first token of an echoed prompt has no log-prob. top_logprobs:
    the sampled token's, which vLLM returns for `logprobs=0` and TRL reads, and the likeliest ones that were
    requested. text_offset: in characters, from the start of the text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """finish_reason: null before the last chunk. weight_versions: (version, tokens) in order, at the end."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length", "abort"] | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    weight_versions: Versions | UnsetType = UNSET


class Completion(Stamps, kw_only=True):
    """Answer of `/v1/completions`, and a chunk of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class TopLogprob(msgspec.Struct, kw_only=True):
    """One of the likeliest tokens of a place."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob, kw_only=True):
    """bytes: of the token's text; null if it is a part of a character."""

    top_logprobs: list[TopLogprob] = []


class ChatLogprobs(msgspec.Struct, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


class FunctionCalled(msgspec.Struct, kw_only=True):
    """arguments: a JSON object, as text."""

    name: str
    arguments: str


class CallIs(msgspec.Struct, kw_only=True):
    """A tool call."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCalled


class CallDelta(CallIs, kw_only=True):
    """A tool call in a stream; it is sent whole. index: among the calls of its choice."""

    index: int


class ChatMessage(msgspec.Struct, kw_only=True):
    """content: null if there are only calls."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[CallIs] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatReason
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    weight_versions: Versions | UnsetType = UNSET


class ChatCompletion(Stamps, kw_only=True):
    """Answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatReason | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    weight_versions: Versions | UnsetType = UNSET


class ChatChunk(Stamps, kw_only=True):
    """A chunk of the stream of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
