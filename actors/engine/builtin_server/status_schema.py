"""Status and error messages of the builtin engine's server, in SGLang's protocol.

Source: SGLang 0.5.23, `entrypoints/http_server.py`. The keys of `/server_info` that clients compare are
slime's.
"""

from typing import Literal

import msgspec


class Load(msgspec.Struct):
    """The present load of the engine. Tokens are those of prompts and responses; rates are a second's."""

    dp_rank: int
    num_running_reqs: int
    num_waiting_reqs: int
    num_used_tokens: int
    num_total_tokens: int
    max_total_num_tokens: int
    token_usage: float
    gen_throughput: float
    cache_hit_rate: float
    utilization: float
    max_running_requests: int


class Loads(msgspec.Struct):
    """`GET /v1/loads`."""

    timestamp: str
    version: str
    accelerator: str
    num_accelerators: int
    loads: list[Load]


class OldLoad(msgspec.Struct):
    """An element of `GET /get_load`."""

    dp_rank: int
    num_reqs: int
    num_waiting_reqs: int
    num_tokens: int


class ModelInfo(msgspec.Struct):
    """`GET /model_info`. vocab_size: not among SGLang's."""

    model_path: str
    tokenizer_path: str
    weight_version: str
    vocab_size: int
    model_type: str = "qwen3"
    architectures: tuple[str, ...] = ("Qwen3ForCausalLM",)
    is_generation: bool = True
    has_image_understanding: bool = False
    has_audio_understanding: bool = False
    preferred_sampling_params: None = None


class ServerInfo(msgspec.Struct):
    """`GET /server_info`: SGLang's arguments as far as clients compare them, and our extras. response_start:
    the extra of `GenerateBody` is understood."""

    model_path: str
    tokenizer_path: str
    served_model_name: str
    weight_version: str
    version: str
    host: str
    port: int
    random_seed: int
    context_length: int
    max_running_requests: int
    max_total_num_tokens: int
    max_total_tokens: int
    max_req_input_len: int
    status: Literal["ready", "paused", "stopping"]
    engine: str = "gleaner-builtin"
    response_start: bool = True
    device: str = "cpu"
    dtype: str = "float32"
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    ep_size: int = 1
    moe_dp_size: int = 1
    num_gpus: int = 1
    nnodes: int = 1
    disaggregation_mode: str = "null"
    enable_memory_saver: bool = False
    enable_return_routed_experts: bool = False
    skip_tokenizer_init: bool = False
    enable_metrics: bool = True
    encoder_only: bool = False


class Problem(msgspec.Struct):
    """The error, its place and its remedy."""

    message: str
    type: str
    code: int


class ProblemBody(msgspec.Struct):
    """The body of every error."""

    error: Problem
