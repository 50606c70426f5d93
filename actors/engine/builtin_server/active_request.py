"""`ActiveRequest`: an accepted request of the server, with its tokens and its end.

Owns the columns of its tokens and the spans of the weights that made them. Used on the event loop alone.
"""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from gleaner.actors.engine.builtin_server.wire import Finish, Span
from gleaner.actors.engine.worker.engine_port import Assignment
from gleaner.actors.protocol.sampling_params import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A request, checked. prompt and prefix: token ids, u32; the prefix is the present part of the response.
    limit: new tokens beyond it. stops: tokens that end it."""

    rid: str
    prompt: "array[int]"
    prefix: "array[int]"
    limit: int
    seed: int
    temperature: float
    sampling: Sampling
    stops: frozenset[int]
    skip_special: bool = True
    keep_stop: bool = False
    logprobs: bool = False
    text_in_logprobs: bool = False


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """An accepted request. changed: set at a new token or the end; the waiting task clears it."""

    asked: CheckedRequest
    began_s: float
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    first_s: float | None = None
    retractions: int = 0
    ended_s: float | None = None
    finish: Finish | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def assignment(self, ticket: int) -> Assignment:
        """The assignment for the engine to continue it, from its last token."""
        asked = self.asked
        return Assignment(
            ticket=ticket,
            prompt=asked.prompt,
            prefix=[*asked.prefix, *self.tokens],
            seed=asked.seed,
            max_new_tokens=len(asked.prefix) + asked.limit,
            temperature=asked.temperature,
            sampling=asked.sampling,
        )

    def take(self, token: int, logprob: float, version: str, now_s: float) -> None:
        """Add a token, made under `version`."""
        if not self.spans or self.spans[-1].version != version:
            self.spans.append(Span(version, len(self.tokens), len(self.tokens)))
        self.spans[-1].end += 1
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.first_s = now_s if self.first_s is None else self.first_s
        self.changed.set()

    def end(self, finish: Finish, now_s: float) -> None:
        """It ended; the first reason counts."""
        if self.finish is None:
            self.finish, self.ended_s = finish, now_s
            self.changed.set()
            self.ended.set()

    @property
    def context(self) -> int:
        """Tokens of prompt and response, now."""
        return len(self.asked.prompt) + len(self.asked.prefix) + len(self.tokens)


def reason_of(running: ActiveRequest, token: int) -> Finish:
    """Why the engine ended it with this token."""
    if token in running.asked.stops:
        return Finish("stop", matched=token)
    return Finish("length", length=running.asked.limit)


def aborted(message: str, status_code: int | None = None) -> Finish:
    """An end by order, or by an unavoidable failure (status_code)."""
    return Finish("abort", message=message, status_code=status_code)


def tokens_of(running: Sequence[ActiveRequest]) -> int:
    """Tokens of all their contexts."""
    return sum(one.context for one in running)
