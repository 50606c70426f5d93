"""Messages to SGLang's server, and the parts of its replies that are read. Pure.

Source: sglang/srt/managers/io_struct.py and entrypoints/http_server.py of 0.5.23; `tests/engines` holds these
structs against the released types.
"""

import base64
import struct

import msgspec


class SglangReply(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the replies of SGLang; unknown keys are ignored, as there are many."""


class SglangRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the requests to SGLang."""


class SamplingParams(SglangRequest, frozen=True, kw_only=True):
    """Settings of one request; defaults are SGLang's own."""

    max_new_tokens: int
    temperature: float
    sampling_seed: int | None = None
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] | None = None
    stream_interval: int | None = None
    logit_bias: dict[str, float] | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None


class Generate(msgspec.Struct, frozen=True, kw_only=True):
    """`/generate`, streaming. return_routed_experts: with the last event. top_logprobs_num: the likeliest
    tokens at each place, of the prompt from logprob_start_len on."""

    rid: str
    input_ids: list[int]
    sampling_params: SamplingParams
    return_logprob: bool = True
    stream: bool = True
    return_routed_experts: bool | msgspec.UnsetType = msgspec.UNSET
    top_logprobs_num: int | msgspec.UnsetType = msgspec.UNSET
    logprob_start_len: int | msgspec.UnsetType = msgspec.UNSET


class Continue(Generate, frozen=True, kw_only=True):
    """The same to a server that accepts `response_start` (`rlctl engine serve`): the index in `input_ids`
    where the response begins. Then a seed has the same effect at every token, whichever engine made the
    earlier ones."""

    response_start: int


class FinishReason(SglangReply, frozen=True, kw_only=True):
    """`type`: stop, length or abort. status_code: of a request that the server cannot serve, as in HTTP."""

    type: str
    message: str | None = None
    status_code: int | None = None


Row = tuple[float | None, int, str | None]
"""A token: log-prob, id, text or null."""


class Meta(SglangReply, frozen=True, kw_only=True):
    """`output_token_logprobs`: of `Row`s, all of the response, or the new ones; undecoded, since earlier rows
    need not be read again. `routed_experts`: base64 of int32, a row (layers x experts of a token) for each
    token of prompt and response but the last; with the end, an abort's too. The other log-probs are of
    requests for the likeliest tokens: of the prompt from `logprob_start_len` on, of the response like
    `output_token_logprobs`. Each place has its likeliest tokens as `Row`s; the first of the prompt has none.
    `num_retractions`: how often the request lost its cache to others so far.
    """

    completion_tokens: int
    output_token_logprobs: msgspec.Raw = msgspec.Raw(b"[]")
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    weight_version: str = ""
    routed_experts: str | None = None
    input_token_logprobs: msgspec.Raw = msgspec.Raw(b"[]")
    input_top_logprobs: msgspec.Raw = msgspec.Raw(b"[]")
    output_top_logprobs: msgspec.Raw = msgspec.Raw(b"[]")
    num_retractions: int = 0


class StreamError(SglangReply, frozen=True, kw_only=True):
    """Why a request was refused, or ended."""

    message: str
    code: int | str | None = None
    retryable: bool | None = None


class Event(SglangReply, frozen=True, kw_only=True):
    """One event of a stream."""

    meta_info: Meta | None = None
    error: StreamError | None = None


class AbortRequest(SglangRequest, frozen=True, kw_only=True):
    """`/abort_request`."""

    rid: str = ""
    abort_all: bool = False


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """`/pause_generation`; `mode` as in `server_wire.PauseMode`."""

    mode: str


class EmptyBody(SglangRequest, frozen=True, kw_only=True):
    """A body without a field."""


class UpdateWeightsFromDisk(msgspec.Struct, frozen=True, kw_only=True):
    """`/update_weights_from_disk`."""

    model_path: str
    weight_version: str
    load_format: str = "safetensors"
    flush_cache: bool = True


class UpdateWeightsFromTensor(msgspec.Struct, frozen=True, kw_only=True):
    """`/update_weights_from_tensor`: for each rank base64 of pickled pairs of a name and a tensor; within
    `/begin_weight_update` and `/end_weight_update`, which take `EmptyBody`."""

    serialized_named_tensors: list[str]
    load_format: str
    weight_version: str
    flush_cache: bool = True


def only_a_name(name: str) -> str:
    """For one rank: `[(name, tensor)]` with an empty tensor of bytes. Written without torch, which nothing
    else here needs. Source: the opcodes in Lib/pickletools.py, torch._utils._rebuild_tensor."""
    text = name.encode()
    tensor = b"ctorch._utils\n_rebuild_tensor\n(ctorch\nByteStorage\n)RK\x00(K\x00t(K\x01ttR"
    pickled = b"\x80\x02](X" + struct.pack("<I", len(text)) + text + tensor + b"ta."
    return base64.b64encode(pickled).decode()


class Updated(SglangReply, frozen=True, kw_only=True):
    """Reply to a weight update, its begin and its end."""

    success: bool
    message: str = ""


class ModelInfo(SglangReply, frozen=True, kw_only=True):
    """`/model_info`."""

    model_path: str
    weight_version: str = ""
    tokenizer_path: str | None = None


class MadeTokens(SglangReply, frozen=True, kw_only=True):
    """Report of `sglang_plugin` on a scheduler: `made` by request, of all that wait in a paused one."""

    paused: bool
    made: dict[str, int]


class MemoryUsage(SglangReply, frozen=True, kw_only=True):
    """Of one device. `weight`, `kvcache`: GB; `token_capacity`: of the cache of its copy of the model."""

    weight: float = 0.0
    kvcache: float = 0.0
    token_capacity: int = 0


class InternalState(SglangReply, frozen=True, kw_only=True):
    """Of one scheduler. `gleaner`: only with the plugin."""

    gleaner: MadeTokens | None = None
    memory_usage: MemoryUsage | None = None


class ServerInfo(SglangReply, frozen=True, kw_only=True):
    """`/server_info`: settings of the server."""

    version: str = ""
    incremental_streaming_output: bool = False
    response_start: bool = False
    internal_states: tuple[InternalState, ...] = ()
    custom_weight_loader: list[str] | None = None
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    enable_return_routed_experts: bool = False
    context_length: int | None = None


class Load(SglangReply, frozen=True, kw_only=True):
    """The load of one data-parallel rank."""

    num_running_reqs: int
    num_waiting_reqs: int


class LoadsAre(SglangReply, frozen=True, kw_only=True):
    """`/v1/loads`."""

    loads: list[Load]
