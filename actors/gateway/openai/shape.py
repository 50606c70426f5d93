"""Answers: the part common to OpenAI's completions and chat answers.

Owns the state of each choice, and the stamps of versions. Does not own the form of a choice
(`answers`, `logprobs`). Pure: no HTTP, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from gleaner.actors.gateway.ask import Vocabulary
from gleaner.actors.gateway.choices import Delta, Last, sound
from gleaner.actors.gateway.openai.tools import Form, ToolText
from gleaner.actors.gateway.openai.wire import Stamps, Usage
from gleaner.actors.gateway.text import Detokenizer
from gleaner.actors.protocol.score_rows import Score, Scores, unpacked


@dataclass(frozen=True, slots=True)
class Shape:
    """What a call requests, and what it sent. prompts: in tokens, each with `n` choices. logprobs, token_ids:
    whether they are returned; ids_as_tokens: a token is named "token_id:N"; usage: a last chunk of a stream
    has it. vocabulary: None if there is no text. scores: how many likeliest tokens are returned, and whether
    those of the prompt; such a choice is returned at its end, all at once. temperature: of the sampling.
    echo: the text of each prompt, which precedes its choices; None: it is not returned. tools: how the model
    writes calls, and the names of the tools; None: text is only text."""

    id: str
    created: int
    model: str
    prompts: Sequence[Sequence[int]]
    n: int
    logprobs: bool
    token_ids: bool
    ids_as_tokens: bool
    usage: bool
    vocabulary: Vocabulary | None
    scores: Scores | None = None
    temperature: float = 1.0
    echo: Sequence[str] | None = None
    tools: tuple[Form, tuple[str, ...]] | None = None

    @property
    def plain(self) -> bool:
        """Whether only the text of a token is returned."""
        return not (self.logprobs or self.token_ids)

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n

    def usage_of(self, tokens: int) -> Usage:
        prompt = sum(len(one) for one in self.prompts)
        return Usage(prompt_tokens=prompt, completion_tokens=tokens, total_tokens=prompt + tokens)

    def prompt_of(self, choice: int) -> list[int] | UnsetType:
        return list(self.prompts[choice // self.n]) if self.token_ids else UNSET

    def ids_of(self, tokens: Sequence[int]) -> list[int] | UnsetType:
        return list(tokens) if self.token_ids else UNSET

    def name(self, token: int, text: str = "") -> str:
        """The name of a token: its number, or its text; parts of a character are decoded separately."""
        if self.ids_as_tokens or self.vocabulary is None:
            return f"token_id:{token}"
        return text or self.vocabulary.tokenizer.decode([token], skip_special_tokens=False)

    def texts_of(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token of a prompt."""
        if self.vocabulary is None:
            return [""] * len(tokens)
        detokenizer = Detokenizer(self.vocabulary.tokenizer, frozenset(), skip_special=False)
        texts = [detokenizer.step(token) for token in tokens]
        if texts:
            texts[-1] += detokenizer.flush()
        return texts


@dataclass(slots=True)
class Choice:
    """A choice so far. scores: of each place of prompt and response but the first, set at the end."""

    tools: ToolText | None = None
    tokens: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    begun: bool = False
    last: Last | None = None


class Answers:
    """The choices of a call, in the form that both APIs share."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        tools = shape.tools
        self.choices = [Choice(None if tools is None else ToolText(*tools)) for _ in range(shape.choices)]

    def take(self, update: Delta | Last) -> int:
        """Add to a choice; returns the number of tokens before. Raises Busy for a log-prob that is not a
        number, if log-probs are wanted."""
        choice = self.choices[update.index]
        before = len(choice.tokens)
        choice.text.append(update.text)
        if isinstance(update, Last):
            choice.last = update
            if update.experts is not None:
                choice.scores = unpacked(update.experts.rows)
            return before
        choice.tokens += update.tokens
        if self.shape.logprobs:
            choice.names += map(self.shape.name, update.tokens, update.texts)
            choice.logprobs += sound(update.logprobs)
            choice.texts += update.texts
        return before

    @property
    def usage(self) -> Usage:
        return self.shape.usage_of(sum(len(choice.tokens) for choice in self.choices))

    def quiet(self, update: Delta | Last) -> bool:
        """Whether a chunk would have no content: a part of a character, or what may be a stop string."""
        if self.shape.scores is not None:
            return isinstance(update, Delta)
        return self.shape.plain and isinstance(update, Delta) and not update.text

    def ended(self) -> Iterator[tuple[int, Choice, Last]]:
        for index, choice in enumerate(self.choices):
            assert choice.last is not None, "reported before every choice had ended"
            yield index, choice, choice.last

    def stamps(self) -> Stamps:
        """The stamps of all choices that have ended."""
        return stamps([choice.last.versions for choice in self.choices if choice.last is not None])


def stamps(versions: Sequence[Sequence[tuple[int, int]]]) -> Stamps:
    """The stamps of choices, each given by its spans."""
    spans = [spans for spans in versions if spans]
    if not spans:
        return Stamps()
    return Stamps(
        weight_version=str(max(version for each in spans for version, _ in each)),
        weight_version_start=min(each[0][0] for each in spans),
        weight_version_end=max(each[-1][0] for each in spans),
    )
