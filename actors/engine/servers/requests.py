"""Requests to an inference server for a piece of work, and their limits. Pure."""

import math
from array import array

import msgspec

from gleaner.actors.engine.servers.port import Ask
from gleaner.actors.protocol.instances import Work
from gleaner.actors.protocol.sampling_params import PLAIN

MOST_WORDS = 1 << 32


class UnservableRequest(ValueError):
    """No server can serve it."""


class _Sized(msgspec.Struct):
    """The vocabulary size in a model's settings."""

    vocab_size: int


def vocabulary_of(model_config: bytes) -> int:
    """Vocabulary size of a model. 0 for a model that only its server knows; the server then refuses unknown
    tokens.
    """
    return msgspec.json.decode(model_config, type=_Sized).vocab_size if model_config else MOST_WORDS


def ask_of(work: Work, rid: str, vocabulary: int, interval: int) -> Ask:
    """The request for the rest of a response, under `rid`, in events of so many tokens. Raises
    `UnservableRequest`."""
    prompt, prefix = array("I", work.prompt), array("I", work.prefix)
    if not prompt:
        raise UnservableRequest("the prompt is empty: there is nothing to continue")
    if len(prefix) >= work.max_new_tokens:
        raise UnservableRequest(f"its prefix has all of its {work.max_new_tokens} tokens already")
    if not 0 <= work.temperature < math.inf:
        raise UnservableRequest(f"temperature {work.temperature} is not a number from 0 up")
    if (token := max(max(prompt), max(prefix, default=0))) >= vocabulary:  # such a token kills SGLang 0.5.23
        raise UnservableRequest(f"token {token} is outside of the vocabulary of {vocabulary}")
    left = work.max_new_tokens - len(prefix)
    sampling = work.sampling or PLAIN
    scores = None if work.experts is None else work.experts.scores
    wanted = work.experts is not None and scores is None
    made = len(prefix)
    return Ask(
        rid, prompt + prefix, left, work.temperature, work.seed, made, sampling, wanted, interval, scores
    )
