"""`Prompts`: text to tokens and back, by a checkpoint's tokenizer and template.

Owns the tokenizer's files, read once; no model, problem or reward, and no text that grows token by token
(`gleaner.actors.gateway.text`). Free of `transformers` and of the package of problems, so that a
command that puts one prompt starts at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from gleaner.actors.reward.entries import Entry


class BadTokenizer(ValueError):
    """A checkpoint directory whose tokenizer cannot be used; the text names the file."""


class BadConversation(ValueError):
    """Messages that the model's chat template refuses; the text is the template's."""


class Prompts:
    """The tokenizer of a checkpoint directory with its chat template, without `transformers`."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = directory = Path(directory)
        path = directory / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BadTokenizer(
                f"{path} cannot be read ({error.strerror}): give a checkpoint directory"
            ) from None
        except Exception as error:  # noqa: BLE001  # the Rust side raises plain Exception
            raise BadTokenizer(f"{path} is no tokenizer ({error}): copy the checkpoint again") from None
        template, self._names = _chat_template(directory)
        self._text = template or ""
        try:
            environment = ImmutableSandboxedEnvironment(  # as transformers renders templates
                trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
            )
            environment.globals["raise_exception"] = _refuse
            environment.filters["tojson"] = _tojson
            self._template = None if template is None else environment.from_string(template)
        except TemplateError as error:
            raise BadTokenizer(f"{directory}: the chat template is broken: {error}") from error

    @property
    def template(self) -> str:
        """The chat template itself, "" for none."""
        return self._text

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer itself, for incremental decoding."""
        return self._tokenizer

    @cached_property
    def special(self) -> frozenset[int]:
        """Ids of tokens that are no text, such as the one that ends a response."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(id for id, token in added.items() if token.special)

    def encode_text(self, text: str, special: bool = False) -> list[int]:
        """Tokens of a text as it is, without the chat template. `special`: with those that the tokenizer
        puts around a text, where it has any."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def encode(self, question: str) -> list[int]:
        """Prompt tokens of a question: one user turn, ready for the model's answer."""
        if self._template is None:
            return list(self._tokenizer.encode(question).ids)
        try:
            text = self.chat([{"role": "user", "content": question}])
        except BadConversation as error:
            raise BadTokenizer(
                f"{self._directory}: the chat template fails on a question: {error}"
            ) from error
        return self.encode_text(text)

    def of(self, entry: Entry) -> list[int]:
        """Prompt tokens of a problem: its conversation, or its question as one user turn. Raises
        `BadConversation`, `BadTokenizer`."""
        if not entry.messages:
            return self.encode(entry.question)
        return self.encode_text(
            self.chat([{"role": one.role, "content": one.content} for one in entry.messages])
        )

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        generation_prompt: bool = True,
        names: Mapping[str, object] | None = None,
    ) -> str:
        """A conversation in the form of the model's template, ready for its answer if `generation_prompt`.

        `names`: further variables of the template, such as enable_thinking. Encode the text without special
        tokens: the template has put them. Raises `BadConversation`.
        """
        if self._template is None:
            raise BadConversation("this model has no chat template: send the prompt as text or tokens")
        known: dict[str, object] = {**self._names, **(names or {})}
        known.update(messages=messages, add_generation_prompt=generation_prompt)
        try:
            return str(self._template.render(known))
        except BadConversation:
            raise
        except Exception as error:  # a template is a program
            raise BadConversation(f"{type(error).__name__}: {error}") from error

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Text of a response; special tokens, such as the one that ends it, only if requested."""
        # The Rust side refuses what is no unsigned 32-bit number, and skips what is not in the vocabulary.
        sound = [token for token in tokens if 0 <= token < 2**32]
        return str(self._tokenizer.decode(sound, skip_special_tokens=not special))


def _refuse(reason: str) -> NoReturn:
    """The `raise_exception` of templates, by which they refuse a conversation."""
    raise BadConversation(reason)


def _tojson(value: object, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """The `tojson` of transformers. Jinja's own sorts keys and escapes HTML, which would change the text of a
    tool."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _chat_template(directory: Path) -> tuple[str | None, dict[str, str]]:
    """The template and the names of special tokens that it may use; transformers 5 gives it a file."""
    names: dict[str, str] = {}
    template: str | None = None
    path = directory / "tokenizer_config.json"
    if path.exists():
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise BadTokenizer(
                f"{path} cannot be read as JSON ({error}): copy the checkpoint again"
            ) from error
        if not isinstance(settings, dict):
            raise BadTokenizer(f"{path} holds a {type(settings).__name__}, expected a JSON object")
        for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            value = settings.get(name)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                names[name] = value
        if isinstance(settings.get("chat_template"), str):
            template = settings["chat_template"]
    path = directory / "chat_template.jinja"
    if path.exists():
        try:
            template = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise BadTokenizer(f"{path} cannot be read ({error}): copy the checkpoint again") from error
    return template, names
