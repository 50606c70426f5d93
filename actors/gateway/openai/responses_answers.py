"""ResponseAnswer: a growing response of `/v1/responses`, its items and its events.

Owns what each delta of a chat adds to it. Pure: no HTTP, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gleaner.actors.gateway.choices import Delta, Last
from gleaner.actors.gateway.openai.answers import ChatAnswers
from gleaner.actors.gateway.openai.responses_requests import ResponseRequest
from gleaner.actors.gateway.openai.responses_wire import (
    Details,
    Event,
    Incomplete,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputText,
    Response,
    ResponseUsage,
    Status,
)
from gleaner.actors.gateway.openai.wire import CallIs, TokenLogprob


class ResponseAnswer:
    """The one choice of `answers` as a response to `asked`."""

    def __init__(self, answers: ChatAnswers, asked: ResponseRequest) -> None:
        self._answers, self._asked = answers, asked
        self.id = answers.shape.id
        self._items: list[OutputItem] = []
        self._open = False  # the last item is a message that grows
        self._number = 0

    # -- at once --

    def whole(self) -> Response:
        """The whole response, once it has ended."""
        message = self._answers.whole().choices[0].message
        if message.content or not message.tool_calls:
            entries = self._logprobs(0)
            self._items.append(self._message(message.content or "", "completed", entries))
        self._items += [self._call(call, "completed") for call in message.tool_calls or ()]
        return self._response(self._status)

    # -- as a stream --

    def opening(self) -> Iterator[Event]:
        """The first events of the stream."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response("in_progress"))

    def receive(self, news: Delta | Last) -> Iterator[Event]:
        """The events that this delta adds; the end also closes all open items."""
        begin = len(self._answers.choices[0].tokens)
        chunk = self._answers.chunk(news)
        if chunk is not None:
            delta = chunk.choices[0].delta
            if delta.content:
                yield from self._grow(delta.content, self._logprobs(begin))
            for call in delta.tool_calls or ():
                yield from self._close()
                yield from self._called(call)
        if isinstance(news, Last):
            if not self._items:
                yield from self._grow("", [])
            yield from self._close()
            yield self._event(f"response.{self._status}", response=self._response(self._status))

    def _grow(self, text: str, logprobs: list[TokenLogprob]) -> Iterator[Event]:
        if not self._open:
            self._open = True
            self._items.append(self._message("", "in_progress", []))
            empty = msgspec.structs.replace(self._last_message, content=[])
            yield self._event("response.output_item.added", output_index=self._at, item=empty)
            yield self._event(
                "response.content_part.added",
                **self._place, part=OutputText(text=""),
            )  # fmt: skip
        content = self._last_message.content[0]
        content.text += text
        content.logprobs = content.logprobs + logprobs
        if text:
            yield self._event("response.output_text.delta", **self._place, delta=text, logprobs=logprobs)

    def _close(self) -> Iterator[Event]:
        """Close the message that grows."""
        if not self._open:
            return
        self._open = False
        message = self._last_message
        message.status = "completed"
        content = message.content[0]
        yield self._event(
            "response.output_text.done", **self._place, text=content.text, logprobs=content.logprobs
        )
        yield self._event("response.content_part.done", **self._place, part=content)
        yield self._event("response.output_item.done", output_index=self._at, item=message)

    def _called(self, call: CallIs) -> Iterator[Event]:
        item = self._call(call, "completed")
        self._items.append(item)
        begun = msgspec.structs.replace(item, arguments="", status="in_progress")
        place: dict[str, Any] = {"output_index": self._at, "item_id": item.id}
        yield self._event("response.output_item.added", output_index=self._at, item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=item.arguments)
        yield self._event(
            "response.function_call_arguments.done", **place, name=item.name, arguments=item.arguments
        )
        yield self._event("response.output_item.done", output_index=self._at, item=item)

    # -- its parts --

    @property
    def _at(self) -> int:
        return len(self._items) - 1

    @property
    def _last_message(self) -> OutputMessage:
        item = self._items[-1]
        assert isinstance(item, OutputMessage), "a message is open"
        return item

    @property
    def _place(self) -> dict[str, Any]:
        return {"output_index": self._at, "content_index": 0, "item_id": self._items[-1].id}

    def _event(self, kind: str, **more: Any) -> Event:
        self._number += 1
        return Event(type=kind, sequence_number=self._number - 1, **more)

    def _message(self, text: str, status: Status, logprobs: Sequence[TokenLogprob]) -> OutputMessage:
        content = OutputText(text=text, logprobs=list(logprobs))
        name = f"msg_{self._answers.shape.id}_{len(self._items)}"
        return OutputMessage(id=name, status=status, content=[content])

    def _call(self, call: CallIs, status: Status) -> OutputCall:
        function = call.function
        return OutputCall(
            id=f"fc_{call.id}",
            call_id=call.id,
            name=function.name,
            arguments=function.arguments,
            status=status,
        )

    def _logprobs(self, begin: int) -> list[TokenLogprob]:
        entries = self._answers.logprobs(0, begin)
        return [] if entries is None else entries.content

    @property
    def _status(self) -> Status:
        last = self._answers.choices[0].last
        return "completed" if last is not None and last.reason == "stop" else "incomplete"

    def _response(self, status: Status) -> Response:
        asked, seen = self._asked, self._answers.stamps()
        format = None if asked.text is None else asked.text.format
        last = self._answers.choices[0].last
        reason = "max_output_tokens" if last is not None and last.reason == "length" else "abort"
        return Response(
            id=self.id,
            created_at=self._answers.shape.created,
            status=status,
            model=self._answers.shape.model,
            output=list(self._items),
            usage=None if last is None else self._usage(),
            incomplete_details=Incomplete(reason=reason) if status == "incomplete" else None,
            instructions=asked.instructions,
            max_output_tokens=asked.max_output_tokens,
            metadata=asked.metadata,
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            temperature=self._answers.shape.temperature,
            text={"format": {"type": "text"} if format is None else msgspec.to_builtins(format)},
            tool_choice="auto" if asked.tool_choice is None else msgspec.to_builtins(asked.tool_choice),
            tools=[msgspec.to_builtins(tool) for tool in asked.tools or ()],
            top_logprobs=asked.top_logprobs,
            top_p=1.0 if asked.top_p is None else asked.top_p,
            weight_version=seen.weight_version,
            weight_version_start=seen.weight_version_start,
            weight_version_end=seen.weight_version_end,
        )

    def _usage(self) -> ResponseUsage:
        usage = self._answers.usage
        return ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=Details(cached_tokens=0),
            output_tokens=usage.completion_tokens,
            output_tokens_details=Details(reasoning_tokens=0),
            total_tokens=usage.total_tokens,
        )
