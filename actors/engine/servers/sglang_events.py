"""Parsing of SGLang's stream events: new tokens, an end, a refusal. Pure."""

import base64
from typing import TypeVar

import msgspec

from gleaner.actors.engine.servers.http import refusal
from gleaner.actors.engine.servers.port import Chunk, Finish, ServerDied, ServerRefused
from gleaner.actors.engine.servers.sglang_messages import Event, Meta, Row

T = TypeVar("T")

UNSERVED = (400, 413, 422)
"""Statuses of an end that is the request's own fault."""

_events = msgspec.json.Decoder(Event)
_rows = msgspec.json.Decoder(list[Row])


def new_of(meta: Meta, seen: int) -> Chunk:
    """The tokens of an event beyond the first `seen` ones, for cumulative and incremental events.

    Raises `ServerDied` if some are missing between.
    """
    fresh = newest_rows(meta.output_token_logprobs, meta.completion_tokens - seen)
    if len(fresh) < meta.completion_tokens - seen:
        raise ServerDied(f"a stream goes on at token {meta.completion_tokens - len(fresh)}, {seen} came")
    if any(logprob is None for logprob, *_ in fresh):
        raise ServerDied("a token came without its log-prob")
    finish: Finish | None = None
    if meta.finish_reason is not None:
        kind = meta.finish_reason.type
        finish = "stop" if kind == "stop" else "length" if kind == "length" else "abort"
    return Chunk(
        [token for _, token, _ in fresh],
        [logprob for logprob, *_ in fresh if logprob is not None],
        finish,
        meta.cached_tokens,
        meta.weight_version,
        _experts(meta),
        meta.num_retractions,
    )


def _experts(meta: Meta) -> bytes:
    """Raises `ServerDied` for what is no base64."""
    try:
        return base64.b64decode(meta.routed_experts or "", validate=True)
    except ValueError as problem:
        raise ServerDied(f"the experts of a request are no base64: {problem}") from problem


def newest_rows(rows: bytes | msgspec.Raw, count: int) -> list[Row]:
    """The last `count` rows of `output_token_logprobs`, or as many as there are.

    A cumulative stream repeats a response at each event: new rows are at its end, and are read from there. A
    "[" may be in a token's text too; a cut at that place has one quote too many and is no JSON.
    """
    if count <= 0:
        return []
    packed = bytes(rows)
    at = len(packed)
    for _ in range(count):
        at = packed.rfind(b"[", 1, at)
        if at < 0:
            break
    try:
        newest = _rows.decode(b"[" + packed[at:]) if at > 0 else []
    except msgspec.MsgspecError:
        newest = []
    return newest if len(newest) == count else _decoded(_rows, packed)[-count:]


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as problem:
        raise ServerDied(
            f"an event of a stream is not what it should be: {problem}: {data[:300]!r}"
        ) from problem


def meta_of(event: bytes) -> Meta:
    """The meta data of an event. Raises `ServerRefused`, `ServerDied`."""
    decoded = _decoded(_events, event)
    if decoded.error is not None:
        code = decoded.error.code if isinstance(decoded.error.code, int) else 500
        refused = refusal(code, decoded.error.message)
        raise ServerRefused(str(refused), refused.never and not decoded.error.retryable)
    if decoded.meta_info is None:
        raise ServerDied(f"an event of a stream has no meta_info: {event[:300]!r}")
    end = decoded.meta_info.finish_reason
    if end is not None and end.type == "abort" and end.status_code in UNSERVED:  # e.g. a bad grammar
        raise ServerRefused(end.message or "the server cannot serve the request", never=True)
    return decoded.meta_info
