"""Texts and tokens of a call: its prompts encoded, and readers for its responses.

Owns what a route needs of the served model's tokenizer, and the answer if there is none. Adapter: long texts
are encoded on a thread beside the event loop.
"""

import asyncio
from collections.abc import Sequence

from aiohttp import web

from gleaner.actors.gateway.ask import BadAsk, Vocabulary
from gleaner.actors.gateway.calls import HandlerContext
from gleaner.actors.gateway.openai.requests import ChatRequest, Common
from gleaner.actors.gateway.openai.tools import (
    DEMANDED,
    NO_FORM,
    Form,
    for_template,
    form_of,
    offered,
)
from gleaner.actors.gateway.text import Detokenizer, Reader

AT_ONCE = 4096
"""Characters that are encoded on the event loop (about a millisecond); longer texts on a thread."""

CHARACTERS_A_TOKEN = 64
"""A text with more characters for each token of the longest prompt is refused before it is encoded."""


def vocabulary(desk: HandlerContext) -> Vocabulary:
    """The tokenizer. Raises HTTPNotImplemented."""
    if desk.vocabulary is None:
        raise web.HTTPNotImplemented(
            text="this gateway has no tokenizer, so it speaks tokens only: send token ids and read "
            "token_ids, or start it with the model's directory"
        )
    return desk.vocabulary


def check_model(desk: HandlerContext, model: str | None) -> None:
    """Raises HTTPNotFound for another model than the served one."""
    if model and model != desk.served.model:
        raise web.HTTPNotFound(text=f"the model {model!r} is not served here; {desk.served.model!r} is")


async def encode(desk: HandlerContext, text: str, special: bool, name: str) -> list[int]:
    """Tokens of a prompt. Raises BadAsk, with the name of its field, for one that is far too long."""
    words, most = vocabulary(desk), desk.served.max_prompt_tokens
    if len(text) > CHARACTERS_A_TOKEN * most:
        raise BadAsk(f"{len(text)} characters are more than a prompt of {most} tokens can be", name)
    if len(text) <= AT_ONCE:
        return words.encode_text(text, special)
    return await asyncio.to_thread(words.encode_text, text, special)


def check_length(desk: HandlerContext, tokens: int, name: str) -> None:
    """Raises BadAsk for a prompt that is too long, in the wording that clients of OpenAI's API recognise."""
    served = desk.served
    if tokens > served.max_prompt_tokens:
        raise BadAsk(
            f"this model's maximum context length is {served.max_model_len} tokens, of which a prompt may "
            f"have {served.max_prompt_tokens}; it has {tokens}",
            name,
        )


async def encode_chat(desk: HandlerContext, body: ChatRequest) -> list[int]:
    """Tokens of a conversation by the model's own template. Raises BadAsk with the template's message."""
    add = True if body.add_generation_prompt is None else body.add_generation_prompt
    turns = [message.for_template() for message in body.messages]
    names: dict[str, object] = dict(body.chat_template_kwargs or {})
    if tools := offered(body.tools, body.tool_choice):
        names["tools"] = for_template(tools)
    try:
        text = vocabulary(desk).chat(turns, add, names)
    except ValueError as error:
        raise BadAsk(str(error), "messages") from error
    tokens = await encode(desk, text, bool(body.add_special_tokens), "messages")
    check_length(desk, len(tokens), "messages")
    return tokens


def tools_of(desk: HandlerContext, body: ChatRequest) -> tuple[Form, tuple[str, ...]] | None:
    """How the model writes calls, and the names of the tools; None if there are none. Raises BadAsk."""
    tools = offered(body.tools, body.tool_choice)
    if not tools:
        return None
    names = tuple(tool.function.name for tool in tools)
    if body.tool_choice not in (None, "auto"):
        return DEMANDED, names
    form = form_of(vocabulary(desk).template)
    if form is None:
        raise BadAsk(NO_FORM, "tools")
    return form, names


def reader(
    words: Vocabulary | None,
    stops: Sequence[str],
    silent: Sequence[int],
    *,
    skip_special: bool = True,
    keep_stop: bool = False,
    min_tokens: int = 0,
    shown: Sequence[str] = (),
) -> Reader | None:
    """The reader of one response; None: there is no text here. silent: stop tokens, which are no text unless
    `keep_stop`. shown: special tokens that are text all the same. Raises HTTPNotImplemented for stop strings
    without a tokenizer."""
    if words is None:
        if stops:
            raise web.HTTPNotImplemented(text="stop strings need a tokenizer; this gateway has none")
        return None
    skipped = words.special if skip_special else frozenset()
    skipped -= {token for name in shown if (token := words.tokenizer.token_to_id(name)) is not None}
    if not keep_stop:
        skipped = skipped | frozenset(silent)
    return Reader(Detokenizer(words.tokenizer, skipped), stops, keep_stop, min_tokens)


def reader_of(
    desk: HandlerContext, body: Common, tools: tuple[Form, tuple[str, ...]] | None = None
) -> Reader | None:
    """The reader for an OpenAI request; tools: the result of `tools_of`."""
    return reader(
        desk.vocabulary,
        body.stops,
        body.stop_token_ids or (),
        skip_special=body.skip_special_tokens is not False,
        keep_stop=bool(body.include_stop_str_in_output),
        min_tokens=body.min_tokens or 0,
        shown=() if tools is None else [name for name in (tools[0].begin, tools[0].end) if name],
    )
