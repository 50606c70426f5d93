"""Requests and replies of the builtin engine's server, in SGLang's protocol.

Owns names, types and defaults of the wire; checks nothing beyond types. Bodies with unknown keys are refused,
as SGLang 0.5.23 refuses them. Fields that are accepted without effect (routing, priorities, cache salts)
change no token. Unsupported fields that would change a token are refused by `request_parser`, by name.

Source: SGLang 0.5.23, `managers/io_struct.py` and `entrypoints/http_server.py`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

Token = int
Ids = list[Token]
Unread = Any
"""JSON of any kind that is not read."""


class SamplingParams(msgspec.Struct, forbid_unknown_fields=True):
    """The draw of tokens, and the end of a response. max_new_tokens: beyond what `input_ids` holds.

    sampling_seed: token i of the response is a function of it, of i and of the logits; None: drawn anew.
    """

    max_new_tokens: int | None = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    n: int = 1
    stop: str | list[str] | None = None
    stop_token_ids: list[Token] | None = None
    stop_regex: str | list[str] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    sampling_seed: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    custom_params: dict[str, Unread] | None = None
    logit_bias: dict[str, float] | None = None
    stream_interval: int | None = None


class GenerateBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /generate`: one request, or a batch where `text` or `input_ids` is a list of prompts.

    response_start is an extra of this server: the index in `input_ids` where the response begins. The tokens
    from there on were generated before, by any engine; with the same `sampling_seed` the response goes on as
    if it had never been interrupted. Of a batch: one for all, or a list.
    """

    text: str | list[str] | None = None
    input_ids: list[Token | Ids] | None = None
    sampling_params: SamplingParams | list[SamplingParams] | None = None
    rid: str | list[str] | None = None
    stream: bool = False
    return_logprob: bool | list[bool] | None = None
    return_text_in_logprobs: bool = False
    response_start: int | list[int] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[Token | Ids] | None = None
    return_routed_experts: bool = False
    return_indexer_topk: bool = False
    return_hidden_states: bool | list[bool] = False
    return_sampling_mask: bool = False
    lora_path: str | list[str | None] | None = None
    image_data: Unread = None
    video_data: Unread = None
    audio_data: Unread = None
    input_embeds: Unread = None
    # Accepted without effect:
    routed_experts_start_len: int | None = None
    sampling_logprobs_mode: str | None = None
    session_id: str | None = None
    session_params: Unread = None
    routing_key: str | None = None
    routed_dp_rank: int | None = None
    priority: int | None = None
    extra_key: str | list[str] | None = None
    cache_salt: str | list[str] | None = None
    custom_labels: dict[str, str] | None = None
    kv_hints: Unread = None
    bootstrap_host: str | list[str | None] | None = None
    bootstrap_port: int | list[int | None] | None = None
    bootstrap_room: int | list[int | None] | None = None
    log_metrics: bool = True
    background: bool = False


class Finish(msgspec.Struct, omit_defaults=True, frozen=True):
    """Why a response ended. matched: the token or string that ended it; length: its limit; status_code: of a
    request that the server could not serve."""

    type: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    length: int | None = None
    message: str | None = None
    status_code: int | None = None


class Span(msgspec.Struct):
    """Tokens `start` … `end` - 1 of this response were made under the weights `version`."""

    version: str
    start: int
    end: int


Logprob = tuple[float, Token, str | None]


class MetaInfo(msgspec.Struct):
    """All but the tokens. finish_reason is None until the last chunk, which alone has weight_versions and
    e2e_latency (seconds)."""

    id: str
    finish_reason: Finish | None
    prompt_tokens: int
    weight_version: str
    num_retractions: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    input_token_logprobs: list[Logprob] | UnsetType = UNSET
    output_token_logprobs: list[Logprob] | UnsetType = UNSET
    output_token_logprobs_length: int | UnsetType = UNSET
    weight_versions: list[Span] | UnsetType = UNSET
    e2e_latency: float | UnsetType = UNSET


class Generated(msgspec.Struct):
    """The answer, or a chunk of it: everything so far. index: of the prompt in a batch, in a stream."""

    text: str
    output_ids: Ids
    meta_info: MetaInfo
    index: int | UnsetType = UNSET


class AbortBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /abort_request`. abort_message: sent to the waiting clients."""

    rid: str | None = None
    abort_all: bool = False
    abort_message: str | None = None
    finished_reason: Unread = None


class PauseBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /pause_generation`. abort: all requests end with their tokens; retract: requests leave their
    slots and are computed anew later; in_place: they keep them."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class ContinueBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /continue_generation`."""

    torch_empty_cache: bool = True


class UpdateBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /update_weights_from_disk`. model_path: a Hugging Face folder of the same architecture;
    weight_version: its name from now on, None: that of the weights before. The other fields have no effect.
    """

    model_path: str
    weight_version: str | None = None
    abort_all_requests: bool = False
    load_format: str | None = None
    is_async: bool = False
    torch_empty_cache: bool = False
    keep_pause: bool = False
    recapture_cuda_graph: bool = False
    token_step: int = 0
    flush_cache: bool = True
    manifest: Unread = None


class Updated(msgspec.Struct):
    """Its answer, with 200 or 400."""

    success: bool
    message: str
    num_paused_requests: int = 0


class VersionBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /update_weight_version`: the weights stay, their name changes."""

    new_version: str
    abort_all_requests: bool = True


class VersionNamed(msgspec.Struct):
    """Its answer."""

    success: bool
    message: str
    new_version: str


class ControlReply(msgspec.Struct):
    """Reply of pause and continue."""

    message: str
    status: Literal["ok"] = "ok"
