"""Text to tokens and back, by the tokenizer of a checkpoint directory with its chat template.

Owns the tokenizer's files, read once; no model, problem or reward. Free of `transformers` and of the package
of problems, so that a command that puts one prompt starts at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer


class BadTokenizer(ValueError):
    """A checkpoint directory whose tokenizer cannot be used; the text names the file."""


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
        try:
            environment = ImmutableSandboxedEnvironment(  # as transformers renders templates
                trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
            )
            self._template = None if template is None else environment.from_string(template)
        except TemplateError as error:
            raise BadTokenizer(f"{directory}: the chat template is broken: {error}") from error

    def encode_text(self, text: str) -> list[int]:
        """Tokens of a text as it is, without the chat template."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode(self, question: str) -> list[int]:
        """Prompt tokens of a question: one user turn, ready for the model's answer."""
        if self._template is None:
            return list(self._tokenizer.encode(question).ids)
        turn = [{"role": "user", "content": question}]
        try:
            text = self._template.render(messages=turn, add_generation_prompt=True, **self._names)
        except Exception as error:  # a template is a program
            raise BadTokenizer(
                f"{self._directory}: the chat template fails on a question: {error}"
            ) from error
        return self.encode_text(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of a response, without special tokens such as the one that ends it."""
        # The Rust side refuses what is no unsigned 32-bit number, and skips what is not in the vocabulary.
        sound = [token for token in tokens if 0 <= token < 2**32]
        return str(self._tokenizer.decode(sound, skip_special_tokens=True))


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
