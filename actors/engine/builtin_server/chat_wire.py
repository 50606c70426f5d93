"""Requests and replies of `/v1/chat/completions` at the builtin engine's server.

Owns the part of OpenAI's chat API that a judge and a simple client need: one answer, at once. Other keys are
refused, because they would change what is returned.

Source: OpenAI's API reference, `POST /chat/completions` and `GET /models`.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A turn of the conversation."""

    role: str
    content: str


class ChatBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/chat/completions`. The limit of the answer is max_completion_tokens, else max_tokens, else
    what the prompt leaves. user: has no effect."""

    model: str
    messages: list[ChatMessage]
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    n: Literal[1] = 1
    stream: Literal[False] = False
    user: str | None = None


class ChatChoice(msgspec.Struct):
    """The answer."""

    message: ChatMessage
    finish_reason: Literal["stop", "length"]
    index: int = 0


class Usage(msgspec.Struct):
    """Tokens of a call."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatAnswer(msgspec.Struct):
    """The reply; created: seconds since 1970."""

    id: str
    model: str
    created: int
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class ModelEntry(msgspec.Struct):
    """The served model."""

    id: str
    max_model_len: int
    owned_by: str = "gleaner"
    object: Literal["model"] = "model"


class ModelList(msgspec.Struct):
    """`GET /v1/models`."""

    data: list[ModelEntry]
    object: Literal["list"] = "list"
