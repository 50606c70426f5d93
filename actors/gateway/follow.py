"""Follow: the state of one followed request: tokens, readers, end.

Owns the joining of progress (pieces may repeat, overlap or leave a gap) and its delivery to readers, each at
its own position. Pure but for the events that readers sleep on. Tokens that were read are kept, 8 bytes each,
for clients that read the same request from its start. Unread ones beyond `limit` stay in the manager's log.
"""

import asyncio
import hashlib
from array import array
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Literal

from gleaner.actors.gateway.ask import (
    Ask,
    AskError,
    BadAsk,
    Busy,
    End,
    NotReady,
    Piece,
    Routed,
    Status,
)
from gleaner.actors.protocol.batches import Span
from gleaner.actors.protocol.requests import Generated, ProgressItem, VersionNotReady, VersionSpan
from gleaner.actors.protocol.sampling_params import CANNOT_CONTINUE
from gleaner.supervisor import Message

Received = Literal["fits", "gap", "full"]
MAX_LIVES = 5
"""Number of starts of a request that no engine can continue."""
OTHERWISE = (
    "the engine of this request is gone, and no other can continue it (docs/gateway.md); begun again, it "
    "does not repeat what was sent already: ask again"
)


class Follow:
    """See the module. ask: the first request. until_s: its deadline, on the actor's clock."""

    def __init__(self, ask: Ask, until_s: float, limit: int) -> None:
        self.ask, self.until_s = ask, until_s
        self.end: End | None = None
        self.problem: AskError | None = None
        self.task: asyncio.Task[None] | None = None
        self.attempt = 0
        self.asked_s = 0.0
        self.begun = False
        self.aborted = False
        self.aborted_s: float | None = None  # when, if it was aborted while it was followed
        self.unrouted: End | None = None
        """Its end, while the experts of its tokens are still collected."""
        self.spans: tuple[Span, ...] = ()
        self.behind = False
        """Tokens were left in the manager; the gateway asks for them when there is free capacity."""
        self._limit = limit
        self.lives = 1
        """Number of starts."""
        self._held = array("I")  # tokens that readers had when it was restarted
        self._tokens, self._logprobs = array("I"), array("f")
        self._versions: list[tuple[int, int]] = []  # (tokens up to here, version), as far as reported
        self._readers: dict[asyncio.Event, int] = {}  # how far each has read

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def over(self) -> bool:
        """The request has ended."""
        return self.end is not None or self.problem is not None

    @property
    def readers(self) -> int:
        """The present number of readers."""
        return len(self._readers)

    @property
    def room(self) -> bool:
        """Whether more tokens may be kept: the foremost reader has read enough."""
        return len(self) - max(self._readers.values(), default=0) < self._limit

    def same(self, ask: Ask) -> bool:
        """Whether this is the same request: deadlines and sessions may differ."""
        mine, other = self.ask, ask
        return (
            mine.prompt == other.prompt
            and mine.max_new_tokens == other.max_new_tokens
            and (mine.temperature, mine.seed, mine.sampling)
            == (other.temperature, other.seed, other.sampling)
            and (mine.min_version, mine.exact_version) == (other.min_version, other.exact_version)
            and (mine.experts, mine.scores) == (other.experts, other.scores)
        )

    def tokens_bytes(self) -> bytes:
        """The tokens so far, u32, raw."""
        return self._tokens.tobytes()

    def sha256(self) -> bytes:
        """Of the tokens so far: identifies them to the manager."""
        return hashlib.sha256(self._tokens.tobytes()).digest()

    def receive(self, item: ProgressItem) -> Received:
        """Add progress. gap: tokens before it are missing. full: it is not kept, since the rest is unread."""
        if item.start > len(self):
            return "gap"
        known = 4 * (len(self) - item.start)
        if self.over or known >= len(item.tokens):
            return "fits"
        if not self.room:
            self.behind = True
            return "full"
        self._take(item.tokens[known:], item.logprobs[known:], item.version)
        self._wake()
        return "fits"

    def receive_reply(self, answer: Message) -> None:
        """Handle the manager's answer: the end, with all missing tokens, or a reason why nothing was
        started."""
        if isinstance(answer, Generated):
            self._answered(answer)
        elif not isinstance(answer, VersionNotReady):
            self.finish(Busy(f"the manager answered {type(answer).__name__}"))
        elif self.ask.gated:
            self.finish(NotReady(answer.target, answer.exact, answer.applied, answer.retryable))
        else:
            self.finish(Busy("no weights are published yet"))

    def refused(self, why: str) -> None:
        """Handle a refusal of the manager. A started request that differs in the manager cannot continue,
        unless it is restarted."""
        if why.endswith(CANNOT_CONTINUE) and self.aborted_s is None and self.lives < MAX_LIVES:
            self._begin_anew()
        elif self.aborted_s is not None or why.endswith("was cancelled"):
            self.give_up("abort")
        elif why.endswith("it is not tried again"):
            self.finish(BadAsk(why))
        elif len(self) or why.endswith(("was asked again", CANNOT_CONTINUE)):
            self.finish(Busy(f"the request cannot be continued: {why}"))
        elif why.endswith("release one first"):
            self.finish(Busy(why))
        else:
            self.finish(BadAsk(why))

    def _begin_anew(self) -> None:
        """Discard all tokens but those that a reader has: the new start must repeat these."""
        self.lives += 1
        self._held = self._tokens[: max(self._readers.values(), default=0)]
        self._tokens, self._logprobs, self._versions = array("I"), array("f"), []
        self.behind = False

    def _answered(self, answer: Generated) -> None:
        if answer.start > len(self):
            return  # the gateway asks again, with the tokens it has
        known = 4 * (len(self) - answer.start)
        last = answer.version_end if answer.version_end is not None else 0
        self._take(answer.tokens[known:], answer.logprobs[known:], last)
        status: Status = "stop" if answer.status == "stop" else "length"
        if answer.status == "deadline":
            status = "abort" if self.aborted else "deadline"
        versions = tuple((span.version, span.count) for span in answer.versions)
        self._correct(answer.versions)
        end = End(status, versions, answer.version_start, answer.version_end)
        if self.ask.rows and len(self):
            self.unrouted, self.spans = end, answer.spans
        else:
            self.finish(end)

    def complete(self, routed: Routed) -> None:
        """End the request, whose end was known before, with its experts."""
        assert self.unrouted is not None, "complete before its end"
        self.finish(replace(self.unrouted, experts=routed))

    def give_up(self, status: Status) -> None:
        """End the request with the tokens that arrived; the manager did not report its end."""
        if self.ask.rows and len(self):
            self.finish(Busy("the manager did not report its end, so the rows of its tokens are lost"))
            return
        spans, before = [], 0
        for until, version in self._versions:
            spans.append((version, until - before))
            before = until
        first, last = (spans[0][0], spans[-1][0]) if spans else (None, None)
        self.finish(End(status, tuple(spans), first, last))

    def finish(self, how: End | AskError) -> None:
        """End the request."""
        if isinstance(how, End) and len(self) < len(self._held):
            how = Busy(OTHERWISE)
        if not self.over:
            if isinstance(how, End):
                self.end = how
            else:
                self.problem = how
        self._wake()

    async def read(self) -> AsyncGenerator[Piece | End, None]:
        """All pieces from the first token on, then the end. Raises the problem that ended it."""
        more = asyncio.Event()
        self._readers[more] = at = 0
        try:
            while True:
                while at < len(self) and (self.over or not self.ask.whole):
                    until, version = self._span(at)
                    yield Piece(self._tokens[at:until].tolist(), self._logprobs[at:until].tolist(), version)
                    self._readers[more] = at = until
                if self.end is not None:
                    del self._readers[more]  # a reader that has the end need not close
                    yield self.end
                    return
                if self.problem is not None:
                    raise self.problem
                more.clear()
                await more.wait()  # the gateway ends it at its deadline
        finally:
            self._readers.pop(more, None)

    def _take(self, tokens: bytes, logprobs: bytes, version: int) -> None:
        if not tokens:
            return
        self._tokens.frombytes(tokens)
        self._logprobs.frombytes(logprobs)
        if self._held and self._held[: len(self)] != self._tokens[: len(self._held)]:
            self.finish(Busy(OTHERWISE))
        if self._versions and self._versions[-1][1] == version:
            self._versions.pop()
        self._versions.append((len(self._tokens), version))

    def _correct(self, spans: tuple[VersionSpan, ...]) -> None:
        """Set the exact versions from the answer; progress reports only the last one of each piece."""
        self._versions, until = [], 0
        for span in spans:
            until += span.count
            self._versions.append((until, span.version))

    def _span(self, at: int) -> tuple[int, int]:
        """The version that made the token at this position, and the end of its span."""
        return next((until, version) for until, version in self._versions if until > at)

    def _wake(self) -> None:
        for event in self._readers:
            event.set()
