"""SGLang answers of `/generate`: their JSON, in a stream and at once. Pure.

Chunks of a stream are cumulative, as in SGLang: each repeats all text, tokens and log-probs so far. They are
assembled from parts that are encoded only once. A chunk is sent when a `PACE`-th more has arrived, so a long
response costs bytes in proportion to its length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gleaner.actors.gateway.choices import Delta, Last, sound
from gleaner.actors.gateway.expert_answers import as_int32

PACE = 64


class SpanIs(msgspec.Struct):
    """Tokens from `start` to `end` were made under this version."""

    version: str
    start: int
    end: int


class MetaIs(msgspec.Struct):
    """`meta_info`. Versions of the last token (SGLang's, a text), of the first and the last one (Stitch's,
    numbers); null without any. A row of output_token_logprobs: log-prob, token, its text. routed_experts:
    base64 of int32, layers x experts of a token for each token of prompt and response but the last, from
    routed_experts_start_len on; sent with the end, if requested."""

    id: str
    prompt_tokens: int
    finish_reason: dict[str, str | int | None] | None
    weight_version: str
    weight_version_start: int | None
    weight_version_end: int | None
    weight_versions: list[SpanIs]
    num_retractions: int
    e2e_latency: float
    completion_tokens: int
    cached_tokens: int
    input_token_logprobs: list[tuple[float, int, str | None]] = []
    output_token_logprobs: list[tuple[float, int, str | None]] = []
    output_token_logprobs_length: int = 0
    routed_experts: str | msgspec.UnsetType = msgspec.UNSET
    routed_experts_start_len: int | msgspec.UnsetType = msgspec.UNSET


class GenerateIs(msgspec.Struct):
    """A response; for a batch, a list of them. In a stream each event has everything so far, and only the
    last one has the versions of all tokens."""

    text: str
    output_ids: list[int]
    meta_info: MetaIs
    prompt_token_ids: list[int] | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerContent:
    """What a caller wants in a response.

    Args:
        logprobs: whether they are returned; with `texts`, each with the text of its token.
        echo: whether the tokens of the prompt are returned.
        index: its place in a batch, sent in each chunk of a stream; None for a single response.
        interval: tokens between two chunks of a stream.
        experts_from: the first token whose experts are returned.
    """

    logprobs: bool
    texts: bool = False
    echo: bool = False
    index: int | None = None
    interval: int = 1
    experts_from: int = 0


class Answer:
    """One response as it grows, and its JSON.

    Args:
        id: in `meta_info`.
        prompt: its tokens.
        content: what is returned.
    """

    def __init__(self, id: str, prompt: Sequence[int], content: AnswerContent) -> None:
        index = content.index
        self._experts_from, self._experts = content.experts_from, b""
        self._index, self._interval = index, content.interval
        self._logprobs_wanted, self._texts = content.logprobs, content.texts
        self._head = b',"meta_info":{"id":%b,"prompt_tokens":%d' % (msgspec.json.encode(id), len(prompt))
        echoed = b',"prompt_token_ids":%b' % msgspec.json.encode(list(prompt)) if content.echo else b""
        self._tail = echoed + (b"" if index is None else b',"index":%d' % index)
        self._text, self._ids, self._logprobs = bytearray(), bytearray(), bytearray()
        self._version = b'""'
        self.tokens = self._final = self._seen = 0
        self._reason = b"null"

    def add(self, delta: Delta) -> bool:
        """Add a delta; returns whether a chunk is due. Raises Busy for a log-prob that is not a number."""
        if delta.tokens:
            ids = msgspec.json.encode(delta.tokens)[1:-1]
            self._ids += b"," + ids if self._ids else ids
            if self._logprobs_wanted:
                logprobs = sound(delta.logprobs)
                texts: Sequence[str | None] = delta.texts if self._texts else [None] * len(logprobs)
                rows = msgspec.json.encode(list(zip(logprobs, delta.tokens, texts, strict=True)))[1:-1]
                self._logprobs += b"," + rows if self._logprobs else rows
            self.tokens += len(delta.tokens)
            self._final = delta.tokens[-1]
            self._version = b'"%d"' % delta.version
        self._text += msgspec.json.encode(delta.text)[1:-1]
        return self.tokens - self._seen >= max(self._interval, self.tokens // PACE, 1)

    def end(self, last: Last) -> None:
        """Record the end of the response."""
        self._text += msgspec.json.encode(last.text)[1:-1]
        self._reason = self._reason_of(last)
        self._versions = last.versions
        if last.experts is not None:
            self._experts = b',"routed_experts":"%b"' % as_int32(last.experts, self._experts_from)
            if self._experts_from:
                self._experts += b',"routed_experts_start_len":%d' % self._experts_from

    def part(self) -> bytes:
        """Everything so far, before the end."""
        self._seen = self.tokens
        return self._json(b',"weight_version":' + self._version)

    def whole(self, latency_s: float) -> bytes:
        """The response; after `end`."""
        spans, start = [], 0
        for version, count in self._versions:
            spans.append(b'{"version":"%d","start":%d,"end":%d}' % (version, start, start + count))
            start += count
        first, last = (self._versions[0][0], self._versions[-1][0]) if self._versions else (None, None)
        stamps = b',"weight_version":%b,"weight_version_start":%b,"weight_version_end":%b' % (
            _stamp(last) if last is not None else b'""',
            msgspec.json.encode(first),
            msgspec.json.encode(last),
        )
        stamps += b',"weight_versions":[%b]' % b",".join(spans)
        return self._json(stamps + b',"num_retractions":0,"e2e_latency":%.6f' % latency_s)

    def _json(self, stamps: bytes) -> bytes:
        parts: list[bytes | bytearray] = [
            b'{"text":"', self._text, b'","output_ids":[', self._ids, b"]", self._head,
            b',"finish_reason":', self._reason, stamps,
            b',"completion_tokens":%d,"cached_tokens":0' % self.tokens,
        ]  # fmt: skip
        if self._logprobs_wanted:
            parts += [
                b',"input_token_logprobs":[],"output_token_logprobs":[', self._logprobs,
                b'],"output_token_logprobs_length":%d' % self.tokens,
            ]  # fmt: skip
        return b"".join([*parts, self._experts, b"}", self._tail, b"}"])

    def _reason_of(self, last: Last) -> bytes:
        if last.reason == "length":
            late = b',"message":"its deadline passed"' if last.stop_reason == "deadline" else b""
            return b'{"type":"length","length":%d%b}' % (self.tokens, late)
        if last.reason == "stop":
            matched = last.stop_reason if last.stop_reason is not None else self._final
            return b'{"type":"stop","matched":%b}' % msgspec.json.encode(matched)
        return b'{"type":"abort","message":"Aborted by the client","status_code":null,"err_type":null}'


def _stamp(version: int) -> bytes:
    return b'"%d"' % version
