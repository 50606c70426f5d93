"""Formats: grammars and biases in the bodies of OpenAI, vLLM and SGLang.

Owns their fields and their meaning to an engine. Does not look into a schema: the engine does, and refuses
what it cannot follow. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.protocol.sampling_params import Grammar


def biases(given: Mapping[str, float] | None) -> tuple[tuple[int, float], ...]:
    """`logit_bias` of a body. Raises BadAsk."""
    try:
        return tuple((int(token), bias) for token, bias in (given or {}).items() if bias)
    except ValueError:
        raise BadAsk("expected numbers of tokens as keys", "logit_bias") from None


class TextFormat(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(msgspec.Struct, kw_only=True, tag_field="type", tag="json_object"):
    """A JSON object."""


class JsonSchema(msgspec.Struct, kw_only=True):
    """strict: accepted; the schema is always followed."""

    name: str
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON of a schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's field; one of these is set. json: a schema or its text; grammar: an EBNF."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1)] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None


class Formats(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Grammar fields of a body; at most one is set. regex, ebnf: SGLang's; guided_*: those of older vLLM."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Meta(min_length=1)] | None = None
    guided_grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None

    def grammar(self) -> Grammar | None:
        """The grammar of the text; None for any text. Raises BadAsk."""
        given = list(self._grammars())
        if len(given) > 1:
            raise BadAsk(f"{given[1][0]} and {given[0][0]} exclude each other", given[1][0])
        return given[0][1] if given else None

    def _grammars(self) -> Iterator[tuple[str, Grammar]]:
        one = self.structured_outputs or StructuredOutputs()
        found = (
            ("response_format", grammar_of(self.response_format)),
            ("structured_outputs", ANY_OBJECT if one.json_object else None),
            ("structured_outputs", _schema(one.json)),
            ("structured_outputs", _named("regex", one.regex)),
            ("structured_outputs", _choice(one.choice)),
            ("structured_outputs", _named("ebnf", one.grammar)),
            ("structured_outputs", _named("structural_tag", one.structural_tag)),
            ("guided_json", _schema(self.guided_json)),
            ("guided_regex", _named("regex", self.guided_regex)),
            ("guided_choice", _choice(self.guided_choice)),
            ("guided_grammar", _named("ebnf", self.guided_grammar)),
            ("regex", _named("regex", self.regex)),
            ("ebnf", _named("ebnf", self.ebnf)),
        )
        yield from ((name, grammar) for name, grammar in found if grammar is not None)


ANY_OBJECT = Grammar(kind="json_schema", text='{"type":"object"}')


def grammar_of(format: ResponseFormat | None) -> Grammar | None:
    """The grammar of a `response_format`; None for any text."""
    match format:
        case JsonObjectFormat():
            return ANY_OBJECT
        case JsonSchemaFormat():
            if format.json_schema.schema is None:
                raise BadAsk("is required", "response_format.json_schema.schema")
            return Grammar(kind="json_schema", text=msgspec.json.encode(format.json_schema.schema).decode())
        case _:
            return None


def _named(kind: str, text: str | None) -> Grammar | None:
    return None if text is None else Grammar(kind=kind, text=text)


def _schema(given: dict[str, Any] | str | None) -> Grammar | None:
    return _named("json_schema", msgspec.json.encode(given).decode() if isinstance(given, dict) else given)


def _choice(texts: list[str] | None) -> Grammar | None:
    """The grammar of one of these texts."""
    if texts is None:
        return None
    return _named("ebnf", "root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts))
