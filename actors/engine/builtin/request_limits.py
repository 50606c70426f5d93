"""`RequestLimits`: the requests that an engine of this model and size can serve. A policy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gleaner.actors.engine.worker.engine_port import Assignment, CannotServe
from gleaner.actors.protocol.sampling_params import PLAIN, Sampling


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """max_tokens: longest prompt + response. ends: the model's end tokens."""

    vocabulary: int
    max_tokens: int
    ends: Sequence[int]

    def stops(self, asked: Sampling) -> Sequence[int]:
        """Tokens that end a response."""
        return asked.stop_token_ids if asked.ignore_eos else (*asked.stop_token_ids, *self.ends)

    def require_fit(self, one: Assignment) -> None:
        """Refuse a request that cannot be served. Raises CannotServe."""
        total = len(one.prompt) + one.max_new_tokens
        if not 0 <= one.ticket < 2**32:
            raise CannotServe(one.ticket, "a ticket is a 32-bit number")
        if not one.prompt:
            raise CannotServe(one.ticket, "the prompt is empty: there is nothing to continue")
        if total > self.max_tokens:
            raise CannotServe(
                one.ticket,
                f"{len(one.prompt)} prompt + {one.max_new_tokens} new tokens are {total}, a slot holds "
                f"{self.max_tokens}: shorten the request, or raise max_tokens of the engine",
            )
        if one.sampling is not None and one.sampling.penalizes:
            raise CannotServe(one.ticket, "this engine has no penalties (frequency, presence, repetition)")
        if one.sampling is not None and one.sampling.grammar is not None:
            kind = one.sampling.grammar.kind
            raise CannotServe(one.ticket, f"{kind}: the builtin engine has no grammars, leave it out")
        if len(one.prefix) >= one.max_new_tokens:
            raise CannotServe(one.ticket, f"its prefix has all of its {one.max_new_tokens} tokens already")
        if one.prefix and one.prefix[-1] in self.stops(one.sampling or PLAIN):
            raise CannotServe(one.ticket, "its prefix ends in a stop token: the request is finished")
        if not 0 <= one.temperature < np.inf:
            raise CannotServe(one.ticket, f"temperature {one.temperature} is not a number from 0 up")
        for token in (*one.prompt, *one.prefix, *_biases(one)):
            if not 0 <= token < self.vocabulary:
                raise CannotServe(
                    one.ticket, f"token {token} is outside of the vocabulary of {self.vocabulary}"
                )


def _biases(one: Assignment) -> tuple[int, ...]:
    """Tokens that are drawn more or less often than the model would."""
    return () if one.sampling is None else tuple(token for token, _ in one.sampling.logit_bias)
