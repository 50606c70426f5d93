"""SGLang body of `/generate`. Pure.

Owns the fields of SGLang 0.5 (with `weight_version` of Stitch) and which of them are not served: a field that
is set and not offered is refused by name.
"""

from typing import Annotated

import msgspec

from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.gateway.calls import VersionGate
from gleaner.actors.gateway.openai.formats import biases
from gleaner.actors.protocol.sampling_params import GRAMMARS, Grammar, Sampling

DEFAULT_NEW_TOKENS = 128
"""SGLang's default for a body without a limit."""
EVERY_TOKEN = 1 << 30
"""What SGLang itself writes for a top_k of -1."""

Unserved = Annotated[
    msgspec.Raw | msgspec.UnsetType,
    msgspec.Meta(description="Known and not served: null, false, 0 or empty."),
]
"""A field that must be empty: any other value is refused."""
Taken = Annotated[msgspec.Raw | msgspec.UnsetType, msgspec.Meta(description="Taken; it changes nothing.")]
NONE = msgspec.UNSET
EMPTY = {b"null", b"false", b"[]", b"{}", b'""', b"0", b"-1", b"[null]", b"[false]", b"[0]", b"[-1]"}


class SamplingBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`sampling_params`. spaces_between_special_tokens: of old tokenizers; those served here have none."""

    max_new_tokens: int | msgspec.UnsetType | None = msgspec.UNSET
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    ignore_eos: bool = False
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    sampling_seed: int | None = None
    n: int = 1
    stream_interval: int | None = None
    beam_width: Unserved = NONE
    custom_params: Unserved = NONE
    ebnf: str | None = None
    json_schema: str | None = None
    logit_bias: dict[str, float] | None = None
    regex: str | None = None
    stop_regex: Unserved = NONE
    structural_tag: str | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def sampling(self) -> Sampling:
        """The settings for an engine."""
        return Sampling(
            top_p=self.top_p,
            top_k=-1 if self.top_k >= EVERY_TOKEN else self.top_k,
            min_p=self.min_p,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repetition_penalty=self.repetition_penalty,
            min_new_tokens=self.min_new_tokens,
            ignore_eos=self.ignore_eos,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            stop=self.stops,
            logit_bias=biases(self.logit_bias),
            grammar=self._grammar(),
        )

    def _grammar(self) -> Grammar | None:
        named = [(kind, text) for kind in GRAMMARS if (text := getattr(self, kind)) is not None]
        if len(named) > 1:
            raise BadAsk(
                f"{named[1][0]} and {named[0][0]} exclude each other", f"sampling_params.{named[1][0]}"
            )
        return Grammar(kind=named[0][0], text=named[0][1]) if named else None


class GenerateBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body. Fields that only help an engine (labels, cache keys, logs) are accepted and change
    nothing."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: SamplingBody | list[SamplingBody] | None = None
    rid: str | list[str] | None = None
    stream: bool = False
    return_logprob: bool | list[bool] | None = None
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False
    return_routed_experts: bool = False
    routed_experts_start_len: int = 0
    weight_version: VersionGate | None = None
    session_id: str | None = None
    routing_key: str | None = None
    conversation_id: str | None = None
    routed_dp_rank: int | None = None
    data_parallel_rank: int | None = None
    background: Taken = NONE
    cache_salt: Taken = NONE
    custom_labels: Taken = NONE
    external_trace_header: Taken = NONE
    extra_key: Taken = NONE
    kv_hints: Taken = NONE
    log_metrics: Taken = NONE
    no_logs: Taken = NONE
    received_time: Taken = NONE
    audio_data: Unserved = NONE
    bootstrap_host: Unserved = NONE
    bootstrap_pair_key: Unserved = NONE
    bootstrap_port: Unserved = NONE
    bootstrap_room: Unserved = NONE
    custom_logit_processor: Unserved = NONE
    decode_tp_size: Unserved = NONE
    disagg_prefill_dp_rank: Unserved = NONE
    image_data: Unserved = NONE
    input_embeds: Unserved = NONE
    logprob_start_len: Unserved = NONE
    lora_id: Unserved = NONE
    lora_path: Unserved = NONE
    max_thinking_tokens: Unserved = NONE
    mm_processor_kwargs: Unserved = NONE
    modalities: Unserved = NONE
    multi_item_delimiter_indices: Unserved = NONE
    positional_embed_overrides: Unserved = NONE
    priority: Unserved = NONE
    require_reasoning: Unserved = NONE
    return_bytes: Unserved = NONE
    return_entropy: Unserved = NONE
    return_flat_raw_output_top_logprobs: Unserved = NONE
    return_flat_raw_top_logprobs: Unserved = NONE
    return_hidden_states: Unserved = NONE
    return_indexer_topk: Unserved = NONE
    return_sampling_mask: Unserved = NONE
    sampling_logprobs_mode: Unserved = NONE
    session_params: Unserved = NONE
    token_ids_logprob: Unserved = NONE
    token_indices_to_pool: Unserved = NONE
    top_logprobs_num: Unserved = NONE
    video_data: Unserved = NONE
    watermark: Unserved = NONE

    @property
    def session(self) -> str | None:
        """The session of the request, from the first field that has one."""
        ranks = (self.routed_dp_rank, self.data_parallel_rank)
        rank = next((f"rank-{one}" for one in ranks if one is not None), None)
        return self.session_id or self.routing_key or self.conversation_id or rank


def check_served(body: msgspec.Struct, prefix: str = "") -> None:
    """Raises BadAsk for the first field that is set and not served."""
    for name in body.__struct_fields__:
        value = getattr(body, name)
        taken = name in _TAKEN and isinstance(body, GenerateBody)
        if isinstance(value, msgspec.Raw) and not taken and b"".join(bytes(value).split()) not in EMPTY:
            raise BadAsk("is not served here; leave it out", prefix + name)


_TAKEN = {
    "background", "cache_salt", "custom_labels", "external_trace_header", "extra_key", "kv_hints",
    "log_metrics", "no_logs", "received_time",
}  # fmt: skip
