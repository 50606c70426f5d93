"""Sampling: settings for drawing a token, beyond temperature and seed.

Owns the fields and their validation. Pure. Names and meanings are those of SGLang's and vLLM's sampling
parameters. An engine that does not offer a requested setting refuses the request; it never ignores the
setting. `stop` is the exception: the requester cuts the text itself, and an engine that knows text merely
ends sooner.
"""

import math
from collections.abc import Iterator

import msgspec

MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1024
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_GRAMMAR_CHARACTERS = 64 * 1024
GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")

CANNOT_CONTINUE = "this response was begun by another"
"""Suffix of the reason of a refusal that is caused by the tokens so far, not by the request: a fresh start
would be served."""


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """A formal language for the text of a response. kind: one of `GRAMMARS`, as SGLang's sampling parameters
    name them; text: the schema, expression or grammar itself."""

    kind: str
    text: str


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every default leaves the distribution as it is.

    top_p: the likeliest tokens whose probabilities sum up to it. top_k: this many of them, -1: all. min_p:
    those at least so likely, as a part of the likeliest. The penalties count the tokens of the response, and
    repetition_penalty those of the prompt too. min_new_tokens: the response does not end by itself before.
    ignore_eos: it does not end at the model's own end either. stop_token_ids end it as the model's own end
    does. logit_bias: is added to the logits of these tokens; log-probs are of the distribution with it.
    grammar: only tokens that keep the text in its language are drawn; log-probs are of those that remain.
    """

    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: Grammar | None = None

    @property
    def continues(self) -> bool:
        """Whether a server can continue a response that another one started. It cannot if it counts the
        tokens that it made itself, as penalties of frequency and presence do, or parses them, as a grammar
        does."""
        return self.grammar is None and not (self.frequency_penalty or self.presence_penalty)

    @property
    def penalizes(self) -> bool:
        """Whether earlier tokens influence the later ones."""
        return (self.frequency_penalty, self.presence_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)

    def faults(self) -> Iterator[str]:
        """Invalid values, each as "name: expected ..."."""
        if not 0 < self.top_p <= 1:
            yield f"top_p: expected a number above 0 and up to 1, not {self.top_p}"
        if self.top_k < -1 or self.top_k == 0:
            yield f"top_k: expected a number from 1, or -1 for all, not {self.top_k}"
        if not 0 <= self.min_p <= 1:
            yield f"min_p: expected a number from 0 to 1, not {self.min_p}"
        for name in ("frequency_penalty", "presence_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                yield f"{name}: expected a number from -2 to 2, not {getattr(self, name)}"
        if not 0 < self.repetition_penalty < math.inf:
            yield f"repetition_penalty: expected a number above 0, not {self.repetition_penalty}"
        if self.min_new_tokens < 0:
            yield f"min_new_tokens: expected a number from 0, not {self.min_new_tokens}"
        if len(self.stop_token_ids) > MAX_STOPS or not all(0 <= one < 1 << 32 for one in self.stop_token_ids):
            yield f"stop_token_ids: expected at most {MAX_STOPS} numbers of 32 bits"
        if len(self.stop) > MAX_STOPS or not all(0 < len(one) <= MAX_STOP_CHARACTERS for one in self.stop):
            yield f"stop: expected at most {MAX_STOPS} strings of 1 to {MAX_STOP_CHARACTERS} characters"
        yield from self._faults_of_bias()
        if self.grammar is not None:
            if self.grammar.kind not in GRAMMARS:
                yield f"grammar: expected one of {', '.join(GRAMMARS)}, not {self.grammar.kind!r}"
            if not 0 < len(self.grammar.text) <= MAX_GRAMMAR_CHARACTERS:
                yield f"{self.grammar.kind}: expected 1 to {MAX_GRAMMAR_CHARACTERS} characters"

    def _faults_of_bias(self) -> Iterator[str]:
        tokens = [token for token, _ in self.logit_bias]
        if len(tokens) > MAX_BIASES or not all(0 <= one < 1 << 32 for one in tokens):
            yield f"logit_bias: expected at most {MAX_BIASES} tokens, numbers of 32 bits"
        elif len(set(tokens)) != len(tokens):
            yield "logit_bias: expected each token once"
        if not all(-MAX_BIAS <= bias <= MAX_BIAS for _, bias in self.logit_bias):
            yield f"logit_bias: expected numbers from {-MAX_BIAS:g} to {MAX_BIAS:g}"


PLAIN = Sampling()
