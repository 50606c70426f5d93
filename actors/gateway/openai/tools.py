"""Tools of a conversation: those offered to a model, and its calls in the text.

Owns the structs of OpenAI's tools, the grammar of a demanded call, and the parsing of calls out of growing
text. A model's text is untrusted: it is read as JSON and nothing else. A call of an unknown tool is no call,
and what is no call stays text. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.protocol.sampling_params import Grammar

MOST_TOOLS = 128
MOST_CALLS = 16
"""Limit of calls of one turn, if a grammar sets their number."""
Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
NO_FORM = (
    "how this model calls tools is not known here: its chat template has neither <tool_call> nor "
    '[TOOL_CALLS]; send tool_choice "required" or a named tool, which need no template'
)


class FunctionIs(msgspec.Struct, kw_only=True):
    """A tool: a function with its JSON schema. strict: accepted; a demanded call always fits the schema."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    type: Literal["function"]
    function: FunctionIs


class NamedFunction(msgspec.Struct, kw_only=True):
    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """`tool_choice` of one tool."""

    type: Literal["function"]
    function: NamedFunction


Choice = Literal["none", "auto", "required"] | NamedTool | None


@dataclass(frozen=True, slots=True)
class Form:
    """How a family of models writes calls. each: one call is between begin and end, and more may follow;
    otherwise a list of calls extends to the end of the text."""

    begin: str
    end: str
    each: bool


HERMES = Form("<tool_call>", "</tool_call>", each=True)
"""Qwen 2.5 and 3, Hermes and related models."""
MISTRAL = Form("[TOOL_CALLS]", "", each=False)
DEMANDED = Form("", "", each=False)
"""All of the text is a list of calls, as the grammar of `demanded` requires."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """arguments: a JSON object."""

    name: str
    arguments: str


def form_of(template: str) -> Form | None:
    """How the model with this chat template calls tools; None if that is unknown."""
    if HERMES.begin in template and "<function=" not in template:
        return HERMES
    return MISTRAL if MISTRAL.begin in template else None


def offered(tools: Sequence[Tool] | None, choice: Choice) -> list[Tool]:
    """The tools that may be called. Raises BadAsk."""
    given = list(tools or ())
    if len(given) > MOST_TOOLS:
        raise BadAsk(f"expected at most {MOST_TOOLS}, got {len(given)}", "tools")
    if len({tool.function.name for tool in given}) != len(given):
        raise BadAsk("expected different names", "tools")
    if choice == "none":
        return []
    if not given and choice not in (None, "auto"):
        raise BadAsk("there are no tools", "tool_choice")
    if isinstance(choice, NamedTool):
        given = [tool for tool in given if tool.function.name == choice.function.name]
        if not given:
            raise BadAsk(f"there is no tool {choice.function.name!r}", "tool_choice")
    return given


def demanded(tools: Sequence[Tool], choice: Choice, parallel: bool) -> Grammar | None:
    """The grammar of the calls that must be made; None if the model may choose. Raises BadAsk."""
    if choice in (None, "none", "auto"):
        return None
    shared: dict[str, Any] = {}
    calls = [_schema_of(tool.function, shared) for tool in tools]
    most = MOST_CALLS if parallel and choice == "required" else 1
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "maxItems": most, "items": {"anyOf": calls}}
    if shared:
        schema["$defs"] = shared
    return Grammar(kind="json_schema", text=msgspec.json.encode(schema).decode())


def _schema_of(function: FunctionIs, shared: dict[str, Any]) -> dict[str, Any]:
    """The schema of a call; definitions that its schema shares move to the top, where its references find
    them."""
    parameters = dict(function.parameters or {"type": "object", "properties": {}})
    for name, one in dict(parameters.pop("$defs", {})).items():
        if shared.setdefault(name, one) != one:
            raise BadAsk(f"two tools define {name!r} in $defs, and not alike", "tools")
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [function.name]}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


class ToolText:
    """The text of one response that may contain calls. Text before and between calls is returned as it
    arrives, except a possible start of a call and blanks before it. A call is returned when it is whole."""

    def __init__(self, form: Form, names: Sequence[str]) -> None:
        self._form, self._names = form, frozenset(names)
        self._held = ""
        self._blank = ""  # before the call that is being read
        self._inside = not form.begin
        self.calls = 0

    def feed(self, text: str) -> Iterator[str | ToolCall]:
        """The parts that may be returned now."""
        self._held += text
        form = self._form
        while True:
            if not self._inside:
                at = self._held.find(form.begin)
                begun = at >= 0
                end = at if begun else len(self._held) - _overlap(self._held, form.begin)
                if shown := self._held[:end].rstrip():
                    yield shown
                if not begun:
                    self._held = self._held[len(shown) :]
                    return
                self._blank = self._held[len(shown) : at]
                self._held = self._held[at + len(form.begin) :]
                self._inside = True
            at = self._held.find(form.end) if form.each else -1
            if at < 0:
                return
            inner, self._held = self._held[:at], self._held[at + len(form.end) :]
            self._inside = False
            yield from self._receive(inner, form.end)

    def end(self) -> Iterator[str | ToolCall]:
        """The remaining parts: the response is over."""
        held, self._held = self._held, ""
        if self._inside and (held or self._form.begin):
            yield from self._receive(held, "")
        elif held and (held.strip() or not self.calls):
            yield held

    def _receive(self, inner: str, end: str) -> Iterator[str | ToolCall]:
        """The calls between begin and end, or all of it as text."""
        calls = parsed(inner, self._names)
        self.calls += len(calls)
        if calls:
            yield from calls
        else:
            yield f"{self._blank}{self._form.begin}{inner}{end}"


class _Said(msgspec.Struct):
    """A call as models write it."""

    name: str
    arguments: dict[str, Any] | None = None
    parameters: dict[str, Any] | None = None


_calls = msgspec.json.Decoder(list[_Said] | _Said)


def parsed(text: str, names: frozenset[str]) -> list[ToolCall]:
    """The calls that make up this text; none if it is anything else."""
    try:
        calls = _calls.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return []
    found = calls if isinstance(calls, list) else [calls]
    if not all(one.name in names for one in found):
        return []
    arguments = (one.arguments if one.arguments is not None else one.parameters or {} for one in found)
    return [
        ToolCall(one.name, msgspec.json.encode(given).decode())
        for one, given in zip(found, arguments, strict=True)
    ]


def call_id(request: str, choice: int, number: int) -> str:
    """The id of a call; the same for a repeated request."""
    return "call_" + hashlib.sha256(f"{request} {choice} {number}".encode()).hexdigest()[:24]


def for_template(tools: Sequence[Tool]) -> list[Mapping[str, object]]:
    """The tools in the form of chat templates."""
    found: list[Mapping[str, object]] = []
    for tool in tools:
        function: dict[str, object] = {"name": tool.function.name}
        if tool.function.description is not None:
            function["description"] = tool.function.description
        function["parameters"] = tool.function.parameters or {"type": "object", "properties": {}}
        found.append({"type": "function", "function": function})
    return found


def _overlap(text: str, begin: str) -> int:
    """Number of characters at the end of the text that may be the start of a call."""
    return next((n for n in range(min(len(begin) - 1, len(text)), 0, -1) if begin.startswith(text[-n:])), 0)
