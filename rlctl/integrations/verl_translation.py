"""Translation between verl's requests and answers and the gateway's `/generate`.

Owns the translation, both ways, and its refusals. Pure: imports neither verl nor HTTP.
"""

from collections.abc import Mapping, Sequence

import msgspec

ABORTED = "aborted"
STOP_REASONS = {"stop": "completed", "length": "completed", "abort": ABORTED}
"""verl's name for the type of SGLang's finish reason, as in verl's own vLLM server."""


class CannotAsk(ValueError):
    """verl requested something that the gateway does not make; a retry does not help."""


class CannotRead(ValueError):
    """The gateway's answer breaks its contract."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`sampling_params` of `/generate`; each is sent, so that no default of a server applies."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = None
    stop: list[str] | str | None = None
    sampling_seed: int | None = None


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/generate`. rid: a repeated rid is the same request (no second generation)."""

    rid: str
    input_ids: list[int]
    sampling_params: Sampling
    return_logprob: bool = True
    stream: bool = False


class FinishReason(msgspec.Struct, frozen=True):
    """Finish reason of SGLang: "stop", "length" or "abort"."""

    type: str


class MetaInfo(msgspec.Struct, frozen=True):
    """The fields of `meta_info` that are read. Versions: of the whole response, its first, its last token."""

    finish_reason: FinishReason | None
    output_token_logprobs: list[tuple[float, int, str | None]] = []
    weight_version: str | int | None = None
    weight_version_start: str | int | None = None
    weight_version_end: str | int | None = None
    cached_tokens: int = 0


class Answer(msgspec.Struct, frozen=True):
    """The answer of `/generate`, not streamed."""

    meta_info: MetaInfo


class Tokens(msgspec.Struct, frozen=True):
    """The fields of verl's TokenOutput. Steps: the weights' versions where they are numbers, else
    unchanged."""

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: str | None
    global_steps: int | None
    min_global_steps: int | None
    max_global_steps: int | None
    num_cached_tokens: int


def ask_of(
    rid: str, prompt_ids: Sequence[int], sampling_params: Mapping[str, object], *, response_length: int
) -> Ask:
    """The body for the arguments of verl's `generate`. Raises CannotAsk, which names the parameter.

    `response_length` is the limit where `sampling_params` has neither `max_tokens` nor `max_new_tokens`.
    """
    given = dict(sampling_params)
    if given.pop("prompt_logprobs", None) is not None:
        raise CannotAsk("prompt_logprobs: the gateway gives log-probs of what it makes, not of prompts")
    given.pop("logprobs", None)  # always present
    limits = [given.pop(name) for name in ("max_tokens", "max_new_tokens") if name in given]
    given["max_new_tokens"] = next((limit for limit in limits if limit is not None), response_length)
    if "seed" in given:
        given["sampling_seed"] = given.pop("seed")
    if "min_tokens" in given:
        given["min_new_tokens"] = given.pop("min_tokens")
    try:
        sampling = msgspec.convert(given, Sampling)
    except msgspec.ValidationError as problem:
        raise CannotAsk(f"sampling parameters of {rid}: {problem}") from problem
    return Ask(rid=rid, input_ids=list(prompt_ids), sampling_params=sampling)


def tokens_of(body: bytes, known_steps: int | None) -> Tokens:
    """The TokenOutput fields of an answer of `/generate`. Raises CannotRead."""
    try:
        meta = msgspec.json.decode(body, type=Answer).meta_info
    except msgspec.DecodeError as problem:
        raise CannotRead(f"the gateway's answer to /generate: {problem}") from problem
    kind = None if meta.finish_reason is None else meta.finish_reason.type
    steps = _steps(meta.weight_version, known_steps)
    return Tokens(
        token_ids=[token for _, token, _ in meta.output_token_logprobs],
        log_probs=[logprob for logprob, _, _ in meta.output_token_logprobs],
        stop_reason=None if kind is None else STOP_REASONS.get(kind, kind),
        global_steps=steps,
        min_global_steps=_steps(meta.weight_version_start, steps),
        max_global_steps=_steps(meta.weight_version_end, steps),
        num_cached_tokens=meta.cached_tokens,
    )


def _steps(version: str | int | None, otherwise: int | None) -> int | None:
    """A version as a number of steps, if it is one."""
    if isinstance(version, str):
        return int(version) if version.isdecimal() else otherwise
    return otherwise if version is None else version
