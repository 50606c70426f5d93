"""One call of OpenAI's chat API: its body, and the judge's text in its answer. Pure.

Source: OpenAI's API reference, `POST /chat/completions`, as SGLang, vLLM and the gateway serve it.
"""

from dataclasses import dataclass

import msgspec

from gleaner.actors.reward.verifiers.http_wires import shown
from gleaner.actors.reward.verifiers.judge import answer
from gleaner.actors.reward.verifiers.judge.answer import NoScore
from gleaner.actors.reward.verifiers.judge.prompt import JudgePrompt
from gleaner.configs.schema import Judge

MAX_TOKENS = 10**9
"""A larger number of used tokens is none."""


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    total_tokens: int = 0


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A judge's answer. tokens: of its prompt and itself; 0 where the server reports none. cut: at the
    longest length."""

    text: str
    tokens: int
    cut: bool


def endpoint(url: str) -> str:
    """The address of calls to a server with this base URL."""
    return f"{url.rstrip('/')}/chat/completions"


def body(settings: Judge, prompt: JudgePrompt) -> dict[str, object]:
    """The request."""
    asked: dict[str, object] = {
        "model": settings.model,
        "messages": [
            {"role": "system", "content": prompt.system},
            {"role": "user", "content": prompt.user},
        ],
        "temperature": settings.temperature,
        "seed": prompt.seed,
        "max_tokens": settings.max_tokens,
    }
    if settings.json_schema:
        form = {"name": "grade", "strict": True, "schema": answer.schema(prompt.nonce, settings.scale)}
        asked["response_format"] = {"type": "json_schema", "json_schema": form}
    return asked


def read(text: bytes) -> Completion:
    """The judge's own text. Raises NoScore: it is no completion."""
    try:
        found = msgspec.json.decode(text, type=_Completion)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NoScore(f"it is no completion: {shown(text)}") from None
    if not found.choices:
        raise NoScore(f"it has no choices: {shown(text)}")
    first, used = found.choices[0], found.usage.total_tokens if found.usage else 0
    return Completion(
        text=first.message.content or "",
        tokens=used if 0 < used <= MAX_TOKENS else 0,
        cut=first.finish_reason == "length",
    )
