"""Messages of a vLLM server: bodies of its routes as typed structs, both ways.

Owns the translation between them and `port`. Pure. Source: vLLM 0.32, its modules
`entrypoints.openai.completion.protocol` and `entrypoints.rl.online.api_router`; `tests/engines` compares
these structs with the classes of released versions.
"""

import msgspec
from msgspec import UNSET, UnsetType

from gleaner.actors.engine.servers.port import Ask, Chunk, Finish, Loads, ServerDied, ServerRefused
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.sampling_params import CANNOT_CONTINUE, Grammar

BACKEND = "gleaner"
"""The weight transfer engine that `vllm_plugin` registers."""
MIDDLEWARE = "gleaner_vllm.made_tokens.MadeTokens"
MADE_TOKENS = "/gleaner/made_tokens"
"""The route that it adds."""
LOGPROB_FLOOR = -9999.0
"""vLLM's value in place of minus infinity; no sampled token has it."""
FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length", "abort": "abort"}
_MASK = 2**63 - 1
_ODD = 0x9E3779B97F4A7C15


class Nothing(msgspec.Struct, frozen=True):
    """An empty body."""


class InitTransfer(msgspec.Struct, frozen=True):
    """Body of `/init_weight_transfer_engine`; our engine has nothing to agree upon."""

    init_info: Nothing = Nothing()


class ServerInfo(msgspec.Struct, frozen=True):
    """Reply of `/server_info?config_format=text`: vLLM's settings as it prints them."""

    vllm_config: str


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A grammar; one of these."""

    json: str | None = None
    regex: str | None = None
    grammar: str | None = None
    structural_tag: str | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/v1/completions`. Every sampling parameter is set, so that no default of a server applies."""

    request_id: str
    model: str
    prompt: list[int]
    max_tokens: int
    temperature: float
    seed: int
    cache_salt: str
    ignore_eos: bool
    stop_token_ids: list[int]
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    min_tokens: int
    logprobs: int = 0
    return_token_ids: bool = True
    return_tokens_as_token_ids: bool = True
    stream: bool = True
    logit_bias: dict[str, float] | UnsetType = UNSET
    structured_outputs: StructuredOutputs | UnsetType = UNSET


class Masked(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/v1/completions` that requests one token out of `allowed_token_ids`. If its log-prob is not 0,
    log-probs are those before sampling parameters were applied."""

    model: str
    prompt: list[int]
    allowed_token_ids: list[int]
    max_tokens: int = 1
    temperature: float = 0.0
    logprobs: int = 0
    return_token_ids: bool = True
    return_tokens_as_token_ids: bool = True
    ignore_eos: bool = True


class LogProbs(msgspec.Struct, frozen=True):
    """Log-probs of the tokens of the chunk; None if vLLM computed none."""

    token_logprobs: list[float | None] = []


class Choice(msgspec.Struct, frozen=True):
    """New tokens of the one requested response."""

    token_ids: list[int] | None = None
    logprobs: LogProbs | None = None
    finish_reason: str | None = None


class ErrorInfo(msgspec.Struct, frozen=True):
    """The text of vLLM's error."""

    message: str = ""
    code: int | str | None = None


class CompletionChunk(msgspec.Struct, frozen=True):
    """A chunk of the stream, or the whole answer without one."""

    choices: list[Choice] = []
    error: ErrorInfo | None = None


class ModelCard(msgspec.Struct, frozen=True):
    """A model that is served."""

    id: str
    max_model_len: int | None = None


class Models(msgspec.Struct, frozen=True):
    """Answer of `/v1/models`."""

    data: list[ModelCard]


class WeightInfo(msgspec.Struct, frozen=True):
    """Answer of `/weight_info`."""

    weight_version: str


class MadeTokens(msgspec.Struct, frozen=True):
    """Answer of `/gleaner/made_tokens`: `made` by request, of all that a paused engine holds."""

    paused: bool
    made: dict[str, int]


class AbortRequests(msgspec.Struct, frozen=True):
    """Body of `/abort_requests`."""

    request_ids: list[str]


class ImageInfo(msgspec.Struct, frozen=True):
    """The message to our weight transfer engine: `vllm_plugin`'s ImageUpdate. Tensors: name, dtype, shape,
    offset, bytes."""

    path: str
    tensors: list[tuple[str, str, tuple[int, ...], int, int]]


class UpdateWeights(msgspec.Struct, frozen=True):
    """Body of `/update_weights`."""

    update_info: ImageInfo


class FinishUpdate(msgspec.Struct, frozen=True):
    """Body of `/finish_weight_update`."""

    weight_version: str


class NewVersion(msgspec.Struct, frozen=True):
    """Body of `/update_weight_version`."""

    new_version: str


class Reload(msgspec.Struct, frozen=True):
    """The keyword of `reload_weights`; without it the model is loaded that the server was started with."""

    weights_path: str | msgspec.UnsetType = msgspec.UNSET


class CollectiveRpc(msgspec.Struct, frozen=True):
    """Body of `/collective_rpc`."""

    kwargs: Reload
    method: str = "reload_weights"


def update_of(path: str, tensors: tuple[TensorSpec, ...]) -> UpdateWeights:
    """The message for a verified image in this file, with its tensors at these offsets."""
    rows = [(spec.name, spec.dtype, spec.shape, spec.offset, spec.nbytes) for spec in tensors]
    return UpdateWeights(ImageInfo(path, rows))


def completion_of(ask: Ask, model: str, salt: str, eos: tuple[int, ...] | None) -> Completion:
    """The body of a request. `eos`: the only tokens that end a response of this model; None: those that the
    server knows. `salt`: of the weights. Raises `ServerRefused` for settings that vLLM would apply in another
    way."""
    asked = ask.sampling
    if ask.made and not asked.continues:
        what = "grammars see" if asked.grammar is not None else "penalties of frequency and presence count"
        raise ServerRefused(f"vLLM's {what} only what one server made, and {CANNOT_CONTINUE}", never=True)
    return Completion(
        request_id=ask.rid,
        model=model,
        prompt=ask.tokens.tolist(),
        max_tokens=ask.max_new_tokens,
        temperature=ask.temperature,
        seed=seed_at(ask.seed, ask.made),
        cache_salt=salt,
        ignore_eos=asked.ignore_eos if eos is None else True,
        stop_token_ids=[*asked.stop_token_ids, *(() if asked.ignore_eos else eos or ())],
        top_p=asked.top_p,
        top_k=max(0, asked.top_k),  # 0 is all of them
        min_p=asked.min_p,
        frequency_penalty=asked.frequency_penalty,
        presence_penalty=asked.presence_penalty,
        repetition_penalty=asked.repetition_penalty,
        min_tokens=min(ask.max_new_tokens, max(0, asked.min_new_tokens - ask.made)),
        logit_bias={str(token): bias for token, bias in asked.logit_bias} or UNSET,
        structured_outputs=UNSET if asked.grammar is None else structured(asked.grammar),
    )


def structured(grammar: Grammar) -> StructuredOutputs:
    """A grammar in vLLM's form."""
    match grammar.kind:
        case "json_schema":
            return StructuredOutputs(json=grammar.text)
        case "regex":
            return StructuredOutputs(regex=grammar.text)
        case "ebnf":
            return StructuredOutputs(grammar=grammar.text)
        case _:
            return StructuredOutputs(structural_tag=grammar.text)


def seed_at(seed: int, position: int) -> int:
    """The seed of a request that goes on after so many tokens of its response: vLLM draws a stream of numbers
    from a seed, and a migrated request must not repeat the numbers of its first tokens."""
    mixed = (seed ^ (position * _ODD)) * _ODD & (2**64 - 1)
    return (mixed ^ mixed >> 32) & _MASK


def request_id(rid: str) -> str:
    """vLLM's id for the first prompt of a completion with this `request_id`."""
    return f"cmpl-{rid}-0"


_chunks = msgspec.json.Decoder(CompletionChunk)


def chunk_of(data: bytes) -> Chunk | None:
    """The chunk in an event's data; None for an event without new tokens. Raises ServerDied for data that no
    sound server sends.
    """
    try:
        chunk = _chunks.decode(data)
    except msgspec.DecodeError as problem:
        raise ServerDied(f"vLLM sent what is no chunk ({problem}): {data[:200]!r}") from problem
    if chunk.error is not None:
        raise ServerDied(f"vLLM failed in the middle of a stream: {chunk.error.message}")
    if not chunk.choices:
        return None
    choice = chunk.choices[0]
    tokens = choice.token_ids or []
    given = [] if choice.logprobs is None else choice.logprobs.token_logprobs
    logprobs = [logprob for logprob in given if logprob is not None and logprob > LOGPROB_FLOOR]
    if len(logprobs) != len(tokens):
        raise ServerDied(f"vLLM sent {len(tokens)} tokens with {len(logprobs)} log-probs: {data[:200]!r}")
    finish = None
    if choice.finish_reason is not None:
        finish = FINISHES.get(choice.finish_reason)
        if finish is None:
            raise ServerDied(f"vLLM ended a response with {choice.finish_reason!r}, which is no word of ours")
    return Chunk(tokens, logprobs, finish) if tokens or finish else None


def loads_of(metrics: str) -> Loads:
    """The load in `/metrics`, in Prometheus' text format; engines of one server are added up."""
    found = {"vllm:num_requests_running": 0.0, "vllm:num_requests_waiting": 0.0}
    for line in metrics.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in found:
            try:
                found[name] += float(line.rpartition(" ")[2])
            except ValueError as problem:
                raise ServerDied(f"vLLM counts its requests as {line!r}") from problem
    running, waiting = found.values()
    return Loads(int(running), int(waiting))
