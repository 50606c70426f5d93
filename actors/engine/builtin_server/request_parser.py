"""Parsing of a `/generate` body into requests, each checked against this engine.

Owns the supported settings and the spreading of a batch. Pure but for the tokenizer, which it is given.
"""

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gleaner.actors.engine.builtin_server.active_request import CheckedRequest
from gleaner.actors.engine.builtin_server.wire import GenerateBody, SamplingParams
from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.actors.reward.prompts import Prompts

T = TypeVar("T")

MAX_BATCH = 1024
MAX_ID = 256
NOT_OFFERED = (
    "return_routed_experts", "return_indexer_topk", "return_hidden_states", "return_sampling_mask",
    "top_logprobs_num", "token_ids_logprob", "lora_path", "image_data", "video_data", "audio_data",
    "input_embeds", "bootstrap_host",
)  # fmt: skip
"""Keys of a body that change what is computed or returned, and that the builtin engine does not have."""
NOT_SAMPLED = (
    "frequency_penalty", "presence_penalty", "repetition_penalty", "stop_regex", "json_schema", "regex",
    "ebnf", "structural_tag", "custom_params",
)  # fmt: skip
"""Settings of the draw that it does not have."""


class BadRequest(ValueError):
    """A body that cannot be served; the text names the key and what is expected."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Limits against which requests are checked. max_tokens: prompt and response together; draw: a fresh
    seed.
    """

    vocabulary: int
    max_tokens: int
    eos: frozenset[int]
    prompts: Prompts
    draw: Callable[[], int]
    name: Callable[[], str]


def asked_of(body: GenerateBody, engine: Engine) -> tuple[list[CheckedRequest], bool]:
    """The requests, and whether they are a batch. Raises BadRequest."""
    for key in NOT_OFFERED:
        if getattr(body, key):
            raise BadRequest(f"{key}: the builtin engine does not offer it, leave it out")
    if any(start >= 0 for start in _listed(body.logprob_start_len, -1)):
        raise BadRequest("logprob_start_len: the builtin engine has no log-probs of prompts, leave it out")
    prompts, batch = _prompts(body, engine.prompts)
    n = len(prompts)
    if not 1 <= n <= MAX_BATCH:
        raise BadRequest(f"expected 1 to {MAX_BATCH} prompts, got {n}")
    ids = _ids(body.rid, n, engine.name)
    params = _spread(body.sampling_params or SamplingParams(), n, "sampling_params")
    logprobs = _spread(body.return_logprob or False, n, "return_logprob")
    given = [len(tokens) for tokens in prompts] if body.response_start is None else body.response_start
    starts = _spread(given, n, "response_start")
    if body.response_start is not None and body.input_ids is None:
        raise BadRequest("response_start: expected with input_ids, it is an index in them")
    rows = zip(ids, prompts, starts, params, logprobs, strict=True)
    return [_asked(*row, body.return_text_in_logprobs, engine) for row in rows], batch


def _asked(
    rid: str,
    tokens: Sequence[int],
    start: int,
    params: SamplingParams,
    logprobs: bool,
    text_in_logprobs: bool,
    engine: Engine,
) -> CheckedRequest:
    if not tokens:
        raise BadRequest("input_ids: the prompt is empty, there is nothing to continue")
    if not 1 <= start <= len(tokens):
        raise BadRequest(f"response_start: expected 1 to {len(tokens)}, got {start}")
    for token in tokens:
        if not 0 <= token < engine.vocabulary:
            raise BadRequest(f"input_ids: {token} is no token, expected 0 to {engine.vocabulary - 1}")
    sampling = _sampling(params, made=len(tokens) - start)
    room = engine.max_tokens - len(tokens)
    limit = room if params.max_new_tokens is None else params.max_new_tokens
    if not 1 <= limit <= room:
        raise BadRequest(
            f"sampling_params.max_new_tokens: {limit} beside a prompt of {len(tokens)} tokens, expected 1 to "
            f"{room}; a request has {engine.max_tokens} tokens in all (--max-tokens)"
        )
    stops = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else engine.eos)
    return CheckedRequest(
        rid=rid,
        prompt=array("I", tokens[:start]),
        prefix=array("I", tokens[start:]),
        limit=limit,
        seed=engine.draw() if params.sampling_seed is None else params.sampling_seed,
        temperature=params.temperature,
        sampling=sampling,
        stops=stops,
        skip_special=params.skip_special_tokens,
        keep_stop=params.no_stop_trim,
        logprobs=logprobs,
        text_in_logprobs=text_in_logprobs,
    )


def _sampling(params: SamplingParams, made: int) -> Sampling:
    """made: tokens of the response that are there already; the engine counts them too, the wire does not."""
    defaults = SamplingParams()
    for key in NOT_SAMPLED:
        if getattr(params, key) not in (getattr(defaults, key), [], {}):
            raise BadRequest(f"sampling_params.{key}: the builtin engine does not offer it, leave it out")
    if params.n != 1:
        raise BadRequest(f"sampling_params.n: expected 1, got {params.n}; ask as often as you want samples")
    if not (0 <= params.temperature < math.inf):
        raise BadRequest(f"sampling_params.temperature: expected a number from 0, got {params.temperature}")
    stop = params.stop or ()
    sampling = Sampling(
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        min_new_tokens=made + params.min_new_tokens if params.min_new_tokens else 0,
        ignore_eos=params.ignore_eos,
        stop_token_ids=tuple(params.stop_token_ids or ()),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        logit_bias=_bias(params.logit_bias or {}),
    )
    if fault := next(sampling.faults(), None):
        raise BadRequest(f"sampling_params.{fault}")
    return sampling


def _bias(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    try:
        return tuple((int(token), bias) for token, bias in given.items())
    except ValueError as problem:
        raise BadRequest(f"sampling_params.logit_bias: expected numbers of tokens ({problem})") from None


def _prompts(body: GenerateBody, prompts: Prompts) -> tuple[Sequence[Sequence[int]], bool]:
    """Tokens of every prompt, and whether the body is a batch."""
    if (body.text is None) == (body.input_ids is None):
        raise BadRequest("text, input_ids: expected one of them")
    if isinstance(body.text, str):
        return [prompts.encode_text(body.text, special=True)], False
    if body.text is not None:
        return [prompts.encode_text(text, special=True) for text in body.text], True
    ids = body.input_ids or []
    nested = [one for one in ids if isinstance(one, list)]
    flat = [one for one in ids if not isinstance(one, list)]
    if nested and flat:
        raise BadRequest("input_ids: expected tokens, or lists of tokens, not both")
    return (nested, True) if nested else ([flat], False)


def _ids(given: str | list[str] | None, n: int, name: Callable[[], str]) -> list[str]:
    ids = [name() for _ in range(n)] if given is None else [given] if isinstance(given, str) else given
    if isinstance(given, str) and n > 1:
        ids = [f"{given}_{index}" for index in range(n)]
    if len(ids) != n or len(set(ids)) != n:
        raise BadRequest(f"rid: expected {n} different names, got {len(set(ids))}")
    if not all(0 < len(rid) <= MAX_ID for rid in ids):
        raise BadRequest(f"rid: expected 1 to {MAX_ID} characters")
    return ids


def _spread(value: T | list[T], n: int, name: str) -> list[T]:
    """One for all, or one for each."""
    if not isinstance(value, list):
        return [value] * n
    if len(value) != n:
        raise BadRequest(f"{name}: expected one, or {n} of them, got {len(value)}")
    return value


def _listed(value: int | list[int] | None, absent: int) -> list[int]:
    return [absent] if value is None else value if isinstance(value, list) else [value]
