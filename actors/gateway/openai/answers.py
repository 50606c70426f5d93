"""OpenAI answers: choices assembled into whole answers and chunks of a stream.

Owns what each delta adds. Does not own the structs (`wire`), the part common to both APIs
(`shape`) or the HTTP (`routes`). Pure: no HTTP, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from gleaner.actors.gateway.choices import Delta, Last
from gleaner.actors.gateway.openai.logprobs import chat_logprobs, completion_logprobs
from gleaner.actors.gateway.openai.shape import Answers, Choice, stamps
from gleaner.actors.gateway.openai.tools import ToolCall, call_id
from gleaner.actors.gateway.openai.wire import (
    CallDelta,
    CallIs,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatReason,
    ChunkChoice,
    Completion,
    CompletionChoice,
    FunctionCalled,
    Stamps,
)


class CompletionAnswers(Answers):
    """`/v1/completions`."""

    def chunk(self, update: Delta | Last) -> Completion | None:
        """The chunk for this delta, None if there is nothing to send."""
        choice, begin = self.choices[update.index], self.take(update)
        if self.quiet(update):
            return None
        last = update if isinstance(update, Last) else None
        first, choice.begun = not choice.begun, True
        begin = 0 if first else begin  # include what was held back
        news = first or last is None
        only = CompletionChoice(
            index=update.index,
            text=self._echoed(update.index) + "".join(choice.text) if first else update.text,
            logprobs=completion_logprobs(self.shape, choice, update.index, begin) if news else None,
            finish_reason=None if last is None else last.reason,
            stop_reason=None if last is None else last.stop_reason,
            token_ids=self.shape.ids_of(choice.tokens[begin:]),
            prompt_token_ids=self.shape.prompt_of(update.index) if first else UNSET,
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
                text=self._echoed(index) + "".join(choice.text),
                logprobs=completion_logprobs(self.shape, choice, index, 0),
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

    def _echoed(self, index: int) -> str:
        return "" if self.shape.echo is None else self.shape.echo[index // self.shape.n]


class ChatAnswers(Answers):
    """`/v1/chat/completions`."""

    def opening(self) -> ChatChunk:
        """The first chunk: the role."""
        roles = [
            ChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))
            for index in range(self.shape.choices)
        ]
        chunk = self._chunk(roles, Stamps())
        chunk.prompt_token_ids = self.shape.prompt_of(0)
        return chunk

    def chunk(self, update: Delta | Last) -> ChatChunk | None:
        """The chunk for this delta, None if there is nothing to send."""
        choice, begin = self.choices[update.index], self.take(update)
        if self.quiet(update):
            return None
        last = update if isinstance(update, Last) else None
        first, choice.begun = not choice.begun, True
        begin = 0 if first else begin  # include what was held back
        delta = self._delta(update.index, choice, "".join(choice.text) if first else update.text, last)
        if last is None and self.shape.plain and delta == ChatDelta():
            return None
        only = ChunkChoice(
            index=update.index,
            delta=delta,
            logprobs=chat_logprobs(self.shape, choice, begin) if first or last is None else None,
            finish_reason=None if last is None else _reason(choice, last),
            stop_reason=None if last is None else last.stop_reason,
            token_ids=self.shape.ids_of(choice.tokens[begin:]),
            weight_versions=UNSET if last is None else list(last.versions),
        )
        return self._chunk([only], Stamps() if last is None else stamps([last.versions]))

    def logprobs(self, index: int, begin: int) -> ChatLogprobs | None:
        """The log-probs of a choice, from token `begin` on."""
        return chat_logprobs(self.shape, self.choices[index], begin)

    def _delta(self, index: int, choice: Choice, text: str, last: Last | None) -> ChatDelta:
        """The delta that this text adds."""
        if choice.tools is None:
            return ChatDelta(content=text) if text or last is None else ChatDelta()
        before = choice.tools.calls
        parts = [*choice.tools.feed(text), *(choice.tools.end() if last is not None else ())]
        calls = [
            CallDelta(index=number, id=call_id(self.shape.id, index, number), function=_function(call))
            for number, call in enumerate(_calls(parts), start=before)
        ]
        return ChatDelta(content=_content(parts) or UNSET, tool_calls=calls or UNSET)

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
            choices=[self._whole_of(index, choice, last) for index, choice, last in self.ended()],
            usage=self.usage,
            prompt_token_ids=self.shape.prompt_of(0),
            weight_version=seen.weight_version,
            weight_version_start=seen.weight_version_start,
            weight_version_end=seen.weight_version_end,
        )

    def _whole_of(self, index: int, choice: Choice, last: Last) -> ChatChoice:
        message = self._message(index, choice)
        return ChatChoice(
            index=index,
            message=message,
            logprobs=chat_logprobs(self.shape, choice, 0),
            finish_reason=_reason(choice, last),
            stop_reason=last.stop_reason,
            token_ids=self.shape.ids_of(choice.tokens),
            weight_versions=list(last.versions),
        )

    def _message(self, index: int, choice: Choice) -> ChatMessage:
        text = "".join(choice.text)
        if choice.tools is None:
            return ChatMessage(content=text)
        parts = [*choice.tools.feed(text), *choice.tools.end()]
        calls = [
            CallIs(id=call_id(self.shape.id, index, number), function=_function(call))
            for number, call in enumerate(_calls(parts))
        ]
        content = _content(parts)
        return ChatMessage(content=content if content or not calls else None, tool_calls=calls or UNSET)

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


def _calls(parts: Iterable[str | ToolCall]) -> list[ToolCall]:
    return [part for part in parts if isinstance(part, ToolCall)]


def _content(parts: Iterable[str | ToolCall]) -> str:
    return "".join(part for part in parts if isinstance(part, str))


def _function(call: ToolCall) -> FunctionCalled:
    return FunctionCalled(name=call.name, arguments=call.arguments)


def _reason(choice: Choice, last: Last) -> ChatReason:
    called = choice.tools is not None and choice.tools.calls > 0
    return "tool_calls" if called and last.reason == "stop" else last.reason
