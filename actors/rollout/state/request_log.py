"""RequestLog: one request's state, spans and verdict, from prompt to score.

Its tokens and log-probs are in `token_columns`, where it has a slot, until they are let go. Pure: no clock,
no I/O.
"""

import enum
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from gleaner.actors.protocol.batches import Span
from gleaner.actors.rollout.state.token_columns import NO_SLOT, Slots, TokenColumns


class RequestState(enum.StrEnum):
    """The state of a request."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    FINISHED = "finished"
    DROPPED = "dropped"  # it does not count: nothing more is generated for it


@dataclass(slots=True)
class RequestLog:
    """One request from prompt to score. Its length is the number of tokens generated for it."""

    id: str
    batch: str
    group: int
    sample: int
    prompt: "array[int]"
    seed: int
    max_new_tokens: int
    temperature: float
    version: int
    columns: TokenColumns
    slot: int
    min_version: int | None = None
    state: RequestState = RequestState.QUEUED
    attempts: int = 0
    score: float | None = None
    status: str = ""  # of its verdict, "" before that
    again: int = 0  # how often its sample had been generated before
    dropped: str = ""  # why it does not count
    ended: bool = False  # it was finished before it was dropped
    crc: int | None = None  # CRC-32 of its tokens, once they are held here no longer
    _count: int = 0  # how many tokens it had
    due: bool = False  # its deadline has passed: it ends with its tokens so far
    cut: bool = False  # its engine ended it at a limit, which may be the engine's own
    _spans: tuple[Span, ...] = ()  # the newest span has no count of its own: it grows with the tokens

    def __len__(self) -> int:
        return self.columns.length(self.slot) if self.crc is None else self._count

    @property
    def judged(self) -> bool:
        """It has its verdict. A verdict without a score: its verifier failed for good."""
        return bool(self.status)

    def __bool__(self) -> bool:
        """Always true, also for a request without tokens."""
        return True

    def tokens_bytes(self) -> bytes:
        """The generated tokens, u32, raw, little-endian. LookupError if they were let go."""
        self._require_tokens()
        return self.columns.tokens(self.slot)

    def logprobs_bytes(self) -> bytes:
        """Their log-probs (natural logarithm), f32, raw, little-endian. LookupError as above."""
        self._require_tokens()
        return self.columns.logprobs(self.slot)

    def made_since(self, start: int) -> tuple[bytes, bytes]:
        """Tokens and log-probs from position `start` on, raw as above. LookupError as above."""
        self._require_tokens()
        return self.columns.since(self.slot, start)

    def tokens_crc(self) -> int:
        """CRC-32 of the generated tokens, also of those that were let go."""
        return zlib.crc32(self.tokens_bytes()) if self.crc is None else self.crc

    def let_go(self, count: int, crc: int) -> None:
        """Release the slot: `count` tokens with this CRC-32 are stored elsewhere."""
        self.columns.end(self.slot)
        self.slot, self._count, self.crc = NO_SLOT, count, crc

    def _require_tokens(self) -> None:
        if self.crc is not None:
            raise LookupError(f"{self.id}: its tokens were handed out, or dropped, and are held no longer")

    def restore(self, tokens: bytes, logprobs: bytes, spans: Iterable[Span]) -> None:
        """Set these tokens and spans, read from the log at rest; only for a request that has none."""
        self.columns.fill(self.slot, tokens, logprobs)
        self._spans = tuple(spans)

    @property
    def spans(self) -> list[Span]:
        """Which attempt made which tokens."""
        if not self._spans:
            return []
        last = self._spans[-1]
        return [*self._spans[:-1], msgspec.structs.replace(last, count=len(self) - last.start)]

    def version_at(self, position: int) -> int:
        """The version that made the token at this position. LookupError if there is none yet."""
        for span in reversed(self._spans):
            if span.start <= position:
                return span.version
        raise LookupError(f"{self.id}: no token at {position}")

    def admits(self, version: int) -> bool:
        """Whether tokens of this version may be added: exactly its own, or any from `min_version` on."""
        return version == self.version if self.min_version is None else version >= self.min_version

    def append(self, token: int, logprob: float, instance: str, incarnation: int, version: int) -> None:
        """Add one token of the current attempt, made under `version`."""
        if not self._spans or self._spans[-1].attempt != self.attempts:
            begun = Span(
                attempt=self.attempts,
                instance=instance,
                incarnation=incarnation,
                version=version,
                start=len(self),
                count=0,
            )
            self._spans = (*self.spans, begun)
        self.columns.append(self.slot, token, logprob)

    @property
    def full(self) -> bool:
        """No token may follow."""
        return len(self) >= self.max_new_tokens

    def faults(self) -> Iterator[str]:
        """Faults of this log; none, unless there is a bug."""
        position, attempt = 0, 0
        for span in self.spans:
            if span.start != position:
                yield f"{self.id}: span of attempt {span.attempt} starts at {span.start}, not at {position}"
            if span.count < 1:
                yield f"{self.id}: empty span of attempt {span.attempt}"
            if not attempt < span.attempt <= self.attempts:
                yield f"{self.id}: attempt {span.attempt} follows {attempt} of {self.attempts}"
            if not self.admits(span.version):
                wanted = f"{self.version}" if self.min_version is None else f"{self.min_version} or later"
                yield f"{self.id}: span under version {span.version}, the batch has {wanted}"
            position, attempt = span.start + span.count, span.attempt
        if position != len(self):
            yield f"{self.id}: spans cover {position} of {len(self)} tokens"
        if len(self) > self.max_new_tokens:
            yield f"{self.id}: {len(self)} tokens, at most {self.max_new_tokens} were asked for"
        if self.judged and self.state not in (RequestState.FINISHED, RequestState.DROPPED):
            yield f"{self.id}: scored while {self.state}"


def lengths(logs: Sequence[RequestLog]) -> Slots:
    """The length of each of these requests, which have the same columns; one call where all are held."""
    slots = np.array([log.slot for log in logs], np.int64)
    if not logs or (slots == NO_SLOT).any():
        return np.array([len(log) for log in logs], np.int64)
    return logs[0].columns.lengths(slots)
