"""Choices of one call: requests followed side by side, as tokens and text.

Owns where a stop string ends a choice, and the order of deltas. Does not own their form on a wire. Pure but
for the requests that it is given.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Literal

from gleaner.actors.gateway.ask import Ask, Busy, End, Piece, Requests, Routed
from gleaner.actors.gateway.text import Reader

Reason = Literal["stop", "length", "abort"]
"""Why a choice ended, as OpenAI's and vLLM's APIs name it."""

HELD = 64
"""Deltas of all choices together that wait for a slow client; beyond that the requests are not read."""

FLOOR = -9999.0
"""vLLM's substitute for a log-prob that is not a number; clients of RL refuse it."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens that follow those before; `text` may lag behind them. texts: of each token, for log-probs.
    version: see `ask.Piece`."""

    index: int
    tokens: Sequence[int]
    logprobs: Sequence[float]
    text: str
    texts: Sequence[str]
    version: int


@dataclass(frozen=True, slots=True)
class Last:
    """The end of a choice. text: what was held back. stop_reason: the stop string, or the requested stop
    token; "deadline" if the deadline passed. versions: (version, tokens) of the choice's tokens, in order.
    experts: if requested, of the prompt and these tokens but the last."""

    index: int
    text: str
    reason: Reason
    stop_reason: int | str | None
    versions: tuple[tuple[int, int], ...]
    experts: Routed | None = None


async def follow(
    requests: Requests, asks: Sequence[Ask], readers: Sequence[Reader | None]
) -> AsyncGenerator[Delta | Last, None]:
    """All choices concurrently, each in order, as they arrive; the n-th ask is choice n. A reader of None: no
    text.

    Raises what `Requests.stream` raises; then, and when it is closed, all requests are left.
    """
    if len(asks) == 1:
        one = _follow_one(requests, 0, asks[0], readers[0])
        try:
            async for item in one:
                yield item
        finally:
            await one.aclose()
        return
    queue: asyncio.Queue[Delta | Last | Exception] = asyncio.Queue(HELD)

    async def pump(index: int) -> None:
        source = _follow_one(requests, index, asks[index], readers[index])
        try:
            async for item in source:
                await queue.put(item)
        except Exception as error:  # noqa: BLE001  # raised below, where it is awaited
            await queue.put(error)
        finally:
            await source.aclose()

    pumps = [asyncio.ensure_future(pump(index)) for index in range(len(asks))]
    try:
        left = len(asks)
        while left:
            came = await queue.get()
            if isinstance(came, Exception):
                raise came
            left -= isinstance(came, Last)
            yield came
    finally:
        for each in pumps:
            each.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _follow_one(
    requests: Requests, index: int, ask: Ask, reader: Reader | None
) -> AsyncGenerator[Delta | Last, None]:
    source = requests.stream(ask)
    taken, final = 0, -1
    try:
        async for item in source:
            if isinstance(item, End):
                yield _last(index, ask, reader, item, taken, final)
                return
            if ask.prompt_only:
                continue
            if reader is not None and reader.stopped:
                continue  # after the stop string: made before the abort arrived
            delta = _delta(index, reader, item)
            taken, final = taken + len(delta.tokens), delta.tokens[-1]
            yield delta
            if reader is not None and reader.stopped:
                await requests.abort([ask.id])
    finally:
        await source.aclose()


def _delta(index: int, reader: Reader | None, piece: Piece) -> Delta:
    if reader is None:
        return Delta(index, piece.tokens, piece.logprobs, "", [""] * len(piece.tokens), piece.version)
    read = reader.feed(piece.tokens)
    tokens, logprobs = piece.tokens[: read.taken], piece.logprobs[: read.taken]
    return Delta(index, tokens, logprobs, read.text, read.texts, piece.version)


def _last(index: int, ask: Ask, reader: Reader | None, end: End, taken: int, final: int) -> Last:
    text = "" if reader is None else reader.end()
    if ask.prompt_only and end.versions:  # the prompt was read, under this version
        experts = None if end.experts is None else end.experts.first(len(ask.prompt) - 1)
        return Last(index, text, "length", None, ((end.versions[0][0], 0),), experts)
    versions = cut(end.versions, taken)
    experts = None if end.experts is None else end.experts.first(len(ask.prompt) + taken - 1)
    if reader is not None and reader.stopped:
        return Last(index, text, "stop", reader.matched, versions, experts)
    if end.status == "stop":
        asked_for = final if final in ask.sampling.stop_token_ids else None
        return Last(index, text, "stop", asked_for, versions, experts)
    if end.status == "deadline":  # cut by a limit, for clients; "abort" is only for requested aborts
        return Last(index, text, "length", "deadline", versions, experts)
    return Last(index, text, end.status, None, versions, experts)


def cut(versions: Sequence[tuple[int, int]], tokens: int) -> tuple[tuple[int, int], ...]:
    """The versions of the first `tokens` tokens."""
    kept: list[tuple[int, int]] = []
    for version, count in versions:
        if tokens > 0:
            kept.append((version, min(count, tokens)))
        tokens -= count
    return tuple(kept)


def sound(logprobs: Sequence[float]) -> list[float]:
    """Log-probs that are numbers, none of them a substitute. Raises Busy otherwise, so such a request fails
    visibly."""
    for logprob in logprobs:
        if not math.isfinite(logprob) or logprob == FLOOR:
            raise Busy(f"an engine gave {logprob} as a log-prob; the request is not answered with it")
    return list(logprobs)
