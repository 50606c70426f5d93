"""Choices as they come, put together in the words of OpenAI's APIs: whole answers and chunks of a stream.

Owns what each delta adds. Does not own the structs (`openai_wire`) or the HTTP (`openai_routes`). Pure: no
HTTP, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from actors.rollout.gateway.ask import Vocabulary
from actors.rollout.gateway.choices import Delta, Last, sound
from actors.rollout.gateway.openai_wire import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChunkChoice,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Stamps,
    TokenLogprob,
    Usage,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a call wants to see, and what it sent. prompts: in tokens, each with `n` choices. logprobs,
    token_ids: whether they are told; ids_as_tokens: a token is called "token_id:N"; usage: a last chunk of a
    stream says it. vocabulary: None where there is no text."""

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

    def names(self, delta: Delta) -> list[str]:
        """What the tokens are called: by number, or by their text; the parts of a character each alone."""
        if self.ids_as_tokens or self.vocabulary is None:
            return [f"token_id:{token}" for token in delta.tokens]
        decoder = self.vocabulary.tokenizer
        pairs = zip(delta.tokens, delta.texts, strict=True)
        return [text or decoder.decode([token], skip_special_tokens=False) for token, text in pairs]


@dataclass(slots=True)
class Choice:
    """A choice as far as it has come."""

    tokens: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    characters: int = 0
    text: list[str] = field(default_factory=list)
    last: Last | None = None


class Answers:
    """The choices of a call, in what both APIs share."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.choices = [Choice() for _ in range(shape.choices)]

    def take(self, told: Delta | Last) -> int:
        """Add to a choice; how many tokens it had before. Raises Busy for a log-prob that is no number, where
        they are wanted."""
        choice = self.choices[told.index]
        before = len(choice.tokens)
        choice.text.append(told.text)
        if isinstance(told, Last):
            choice.last = told
            return before
        choice.tokens += told.tokens
        if self.shape.logprobs:
            choice.names += self.shape.names(told)
            choice.logprobs += sound(told.logprobs)
            choice.texts += told.texts
            for text in told.texts:
                choice.offsets.append(choice.characters)
                choice.characters += len(text)
        return before

    @property
    def usage(self) -> Usage:
        return self.shape.usage_of(sum(len(choice.tokens) for choice in self.choices))

    def quiet(self, told: Delta | Last) -> bool:
        """Whether a chunk would say nothing: a part of a character, or what may be a stop string."""
        plain = not (self.shape.logprobs or self.shape.token_ids)
        return plain and isinstance(told, Delta) and not told.text

    def ended(self) -> Iterator[tuple[int, Choice, Last]]:
        for index, choice in enumerate(self.choices):
            assert choice.last is not None, "told before every choice had ended"
            yield index, choice, choice.last

    def stamps(self) -> Stamps:
        """Of all choices that have ended."""
        return stamps([choice.last.versions for choice in self.choices if choice.last is not None])


class CompletionAnswers(Answers):
    """`/v1/completions`."""

    def chunk(self, told: Delta | Last) -> Completion | None:
        """The chunk that tells it, None for nothing to tell."""
        choice, begin = self.choices[told.index], self.take(told)
        if self.quiet(told):
            return None
        last = told if isinstance(told, Last) else None
        only = CompletionChoice(
            index=told.index,
            text=told.text,
            logprobs=self._logprobs(choice, begin) if last is None else None,
            finish_reason=None if last is None else last.reason,
            stop_reason=None if last is None else last.stop_reason,
            token_ids=self.shape.ids_of(choice.tokens[begin:]),
            prompt_token_ids=self.shape.prompt_of(told.index) if begin == 0 and last is None else UNSET,
            weight_versions=UNSET if last is None else list(last.versions),
        )
        return self._body([only], Stamps() if last is None else stamps([last.versions]))

    def usage_chunk(self) -> Completion:
        body = self._body([], Stamps())
        body.usage = self.usage
        return body

    def whole(self) -> Completion:
        """The answer, once every choice has ended."""
        choices = [
            CompletionChoice(
                index=index,
                text="".join(choice.text),
                logprobs=self._logprobs(choice, 0),
                finish_reason=last.reason,
                stop_reason=last.stop_reason,
                token_ids=self.shape.ids_of(choice.tokens),
                prompt_token_ids=self.shape.prompt_of(index),
                weight_versions=list(last.versions),
            )
            for index, choice, last in self.ended()
        ]
        body = self._body(choices, self.stamps())
        body.usage = self.usage
        return body

    def _body(self, choices: list[CompletionChoice], seen: Stamps) -> Completion:
        return Completion(
            id=self.shape.id,
            created=self.shape.created,
            model=self.shape.model,
            choices=choices,
            usage=None if self.shape.usage else UNSET,
            weight_version=seen.weight_version,
            weight_version_start=seen.weight_version_start,
            weight_version_end=seen.weight_version_end,
        )

    def _logprobs(self, choice: Choice, begin: int) -> CompletionLogprobs | None:
        if not self.shape.logprobs:
            return None
        names, logprobs = choice.names[begin:], choice.logprobs[begin:]
        return CompletionLogprobs(
            tokens=names,
            token_logprobs=logprobs,
            top_logprobs=[{name: logprob} for name, logprob in zip(names, logprobs, strict=True)],
            text_offset=choice.offsets[begin:],
        )


class ChatAnswers(Answers):
    """`/v1/chat/completions`."""

    def opening(self) -> ChatChunk:
        """The first chunk: whose turn it is."""
        roles = [
            ChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))
            for index in range(self.shape.choices)
        ]
        chunk = self._chunk(roles, Stamps())
        chunk.prompt_token_ids = self.shape.prompt_of(0)
        return chunk

    def chunk(self, told: Delta | Last) -> ChatChunk | None:
        """The chunk that tells it, None for nothing to tell."""
        choice, begin = self.choices[told.index], self.take(told)
        if self.quiet(told):
            return None
        last = told if isinstance(told, Last) else None
        only = ChunkChoice(
            index=told.index,
            delta=ChatDelta(content=told.text) if told.text or last is None else ChatDelta(),
            logprobs=self._logprobs(choice, begin) if last is None else None,
            finish_reason=None if last is None else last.reason,
            stop_reason=None if last is None else last.stop_reason,
            token_ids=self.shape.ids_of(choice.tokens[begin:]),
            weight_versions=UNSET if last is None else list(last.versions),
        )
        return self._chunk([only], Stamps() if last is None else stamps([last.versions]))

    def usage_chunk(self) -> ChatChunk:
        chunk = self._chunk([], Stamps())
        chunk.usage = self.usage
        return chunk

    def whole(self) -> ChatCompletion:
        """The answer, once every choice has ended."""
        seen = self.stamps()
        return ChatCompletion(
            id=self.shape.id,
            created=self.shape.created,
            model=self.shape.model,
            choices=[
                ChatChoice(
                    index=index,
                    message=ChatMessage(content="".join(choice.text)),
                    logprobs=self._logprobs(choice, 0),
                    finish_reason=last.reason,
                    stop_reason=last.stop_reason,
                    token_ids=self.shape.ids_of(choice.tokens),
                    weight_versions=list(last.versions),
                )
                for index, choice, last in self.ended()
            ],
            usage=self.usage,
            prompt_token_ids=self.shape.prompt_of(0),
            weight_version=seen.weight_version,
            weight_version_start=seen.weight_version_start,
            weight_version_end=seen.weight_version_end,
        )

    def _chunk(self, choices: list[ChunkChoice], seen: Stamps) -> ChatChunk:
        return ChatChunk(
            id=self.shape.id,
            created=self.shape.created,
            model=self.shape.model,
            choices=choices,
            usage=None if self.shape.usage else UNSET,
            weight_version=seen.weight_version,
            weight_version_start=seen.weight_version_start,
            weight_version_end=seen.weight_version_end,
        )

    def _logprobs(self, choice: Choice, begin: int) -> ChatLogprobs | None:
        if not self.shape.logprobs:
            return None
        rows = zip(choice.names[begin:], choice.logprobs[begin:], choice.texts[begin:], strict=True)
        return ChatLogprobs(
            content=[
                TokenLogprob(token=name, logprob=logprob, bytes=list(text.encode()) if text else None)
                for name, logprob, text in rows
            ]
        )


def stamps(versions: Sequence[Sequence[tuple[int, int]]]) -> Stamps:
    """Of choices, each with its spans."""
    spans = [spans for spans in versions if spans]
    if not spans:
        return Stamps()
    return Stamps(
        weight_version=str(max(version for each in spans for version, _ in each)),
        weight_version_start=min(each[0][0] for each in spans),
        weight_version_end=max(each[-1][0] for each in spans),
    )
