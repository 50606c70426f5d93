"""`ScoreReading`: likeliest tokens of each place, from one SGLang stream. Pure.

SGLang gives those of a prompt under temperature 1 and those of a response under the request's own. The output
has the differences of the model itself, so those of a response are scaled back.
"""

import math
from dataclasses import replace

import msgspec

from gleaner.actors.engine.servers.port import Ask, Chunk, ServerDied
from gleaner.actors.engine.servers.sglang_messages import Meta, Row
from gleaner.actors.protocol.score_rows import Score, Scores, packed

_tokens = msgspec.json.Decoder(list[Row])
_tops = msgspec.json.Decoder(list[list[Row] | None])


class ScoreReading:
    """Scores of one stream. first: the first input token of the server whose place is wanted."""

    def __init__(self, ask: Ask, wanted: Scores) -> None:
        self._ask, self._wanted = ask, wanted
        self._given = len(ask.tokens)
        self.first = 0 if wanted.prompt else self._given - ask.made - 1
        self._scale = ask.temperature or 1.0
        self._prompt: list[Score] = []
        self._response: list[Score] = []

    def read(self, meta: Meta, chunk: Chunk, seen: int) -> Chunk:
        """The chunk of this event; the last one has the rows. Raises `ServerDied` for anything but such a
        list."""
        try:
            self._read(meta, chunk, seen)
        except (msgspec.MsgspecError, ValueError) as problem:
            raise ServerDied(
                f"the likeliest tokens of a request are not what they should be: {problem}"
            ) from problem
        missing = (
            self._given + seen + len(chunk.tokens) - 1 - self.first - len(self._prompt) - len(self._response)
        )
        if chunk.finish is None or missing:
            return chunk
        before = [Score(0.0, ((0, 0.0),) * self._wanted.top)] * self.first
        rows = packed([*before, *self._prompt, *self._response], self._wanted.top)
        return replace(chunk, experts=rows)

    def _read(self, meta: Meta, chunk: Chunk, seen: int) -> None:
        top = self._wanted.top
        if not self._prompt and self._given - 1 > self.first:
            decoded = _tokens.decode(meta.input_token_logprobs)[1:]
            tops = _tops.decode(meta.input_top_logprobs)[1:] if top else [None] * len(decoded)
            self._prompt = [_score(row[0], one, 1.0) for row, one in zip(decoded, tops, strict=False)]
        fresh = len(chunk.tokens)
        if fresh:
            tops = _tops.decode(meta.output_top_logprobs)[-fresh:] if top else [None] * fresh
            self._response += [
                _score(logprob, likeliest, self._scale)
                for logprob, likeliest in zip(chunk.logprobs, tops, strict=False)
            ]


def _score(logprob: float | None, likeliest: list[Row] | None, scale: float) -> Score:
    """The score of a place; the log-prob differences to its token are multiplied by `scale`."""
    own = -math.inf if logprob is None else logprob
    pairs = ((token, one) for one, token, _ in likeliest or () if one is not None)
    return Score(own, tuple((token, own + scale * (one - own)) for token, one in pairs))
