"""SGLang's `/generate`: what a body says, and what an answer looks like, in a stream and at once.

Owns the words of SGLang 0.5 (with `weight_version` of Stitch) and which of them are not served: one that is
set and not offered is refused by name. Pure. Chunks of a stream are cumulative, as SGLang's: each repeats all
text, tokens and log-probs so far. They are put together from what was encoded before, not encoded anew, and a
chunk comes when a `PACE`-th more has come, so that a long response costs bytes in proportion to its length.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from actors.rollout.gateway.ask import BadAsk
from actors.rollout.gateway.calls import VersionGate
from actors.rollout.gateway.choices import Delta, Last, sound
from actors.rollout.sampling_params import Sampling

PACE = 64
DEFAULT_NEW_TOKENS = 128
"""SGLang's, for a body that names no limit."""
EVERY_TOKEN = 1 << 30
"""What SGLang itself writes for a top_k of -1."""

Unserved = Annotated[
    msgspec.Raw | msgspec.UnsetType,
    msgspec.Meta(description="Known and not served: null, false, 0 or empty."),
]
"""A field of which anything but an empty value is refused."""
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
    ebnf: Unserved = NONE
    json_schema: Unserved = NONE
    logit_bias: Unserved = NONE
    regex: Unserved = NONE
    stop_regex: Unserved = NONE
    structural_tag: Unserved = NONE

    def limit(self, most: int) -> int | None:
        """Tokens of a response at most; None: as many as are served, which is `most`."""
        if self.max_new_tokens is msgspec.UNSET:
            return min(DEFAULT_NEW_TOKENS, most)
        return self.max_new_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def sampling(self) -> Sampling:
        """What an engine needs to know of it."""
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
        )


class GenerateBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body. Fields that only help an engine (labels, cache keys, logs) are taken and change nothing."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: SamplingBody | list[SamplingBody] | None = None
    rid: str | list[str] | None = None
    stream: bool = False
    return_logprob: bool | list[bool] | None = None
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False
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
    return_routed_experts: Unserved = NONE
    return_sampling_mask: Unserved = NONE
    routed_experts_start_len: Unserved = NONE
    sampling_logprobs_mode: Unserved = NONE
    session_params: Unserved = NONE
    token_ids_logprob: Unserved = NONE
    token_indices_to_pool: Unserved = NONE
    top_logprobs_num: Unserved = NONE
    video_data: Unserved = NONE
    watermark: Unserved = NONE

    @property
    def session(self) -> str | None:
        """Whose request it is, in whichever words."""
        ranks = (self.routed_dp_rank, self.data_parallel_rank)
        rank = next((f"rank-{one}" for one in ranks if one is not None), None)
        return self.session_id or self.routing_key or self.conversation_id or rank


def check_served(body: msgspec.Struct, prefix: str = "") -> None:
    """Raises BadAsk for the first field that is set and not served."""
    for field in msgspec.structs.fields(body):
        value = getattr(body, field.name)
        taken = field.name in _TAKEN and isinstance(body, GenerateBody)
        if isinstance(value, msgspec.Raw) and not taken and b"".join(bytes(value).split()) not in EMPTY:
            raise BadAsk("is not served here; leave it out", prefix + field.name)


_TAKEN = {
    "background", "cache_salt", "custom_labels", "external_trace_header", "extra_key", "kv_hints",
    "log_metrics", "no_logs", "received_time",
}  # fmt: skip


class SpanIs(msgspec.Struct):
    """Tokens from `start` to `end` were made under this version."""

    version: str
    start: int
    end: int


class MetaIs(msgspec.Struct):
    """`meta_info`. Versions of the last token (SGLang's, a text), of the first and the last one (Stitch's,
    numbers); null without any. A row of output_token_logprobs: log-prob, token, its text."""

    id: str
    prompt_tokens: int
    finish_reason: dict[str, str | int | None] | None
    weight_version: str
    weight_version_start: int | None
    weight_version_end: int | None
    weight_versions: list[SpanIs]
    num_retractions: int
    e2e_latency: float
    completion_tokens: int
    cached_tokens: int
    input_token_logprobs: list[tuple[float, int, str | None]] = []
    output_token_logprobs: list[tuple[float, int, str | None]] = []
    output_token_logprobs_length: int = 0


class GenerateIs(msgspec.Struct):
    """A response; for a batch, a list of them. In a stream each event has all so far, and only the last one
    the versions of all tokens."""

    text: str
    output_ids: list[int]
    meta_info: MetaIs
    prompt_token_ids: list[int] | None = None
    index: int | None = None


class Answer:
    """One response as it grows, and its JSON.

    Args:
        id: in `meta_info`.
        prompt: tokens of it, told again if `echo`.
        logprobs: whether they are told; with `texts`, each with the text of its token.
        index: its place in a batch, told in each chunk of a stream; None where there is one only.
    """

    def __init__(
        self,
        id: str,
        prompt: Sequence[int],
        *,
        logprobs: bool,
        texts: bool = False,
        echo: bool = False,
        index: int | None = None,
        interval: int = 1,
    ) -> None:
        self._index, self._interval = index, interval
        self._logprobs_wanted, self._texts = logprobs, texts
        self._head = b',"meta_info":{"id":%b,"prompt_tokens":%d' % (msgspec.json.encode(id), len(prompt))
        echoed = b',"prompt_token_ids":%b' % msgspec.json.encode(list(prompt)) if echo else b""
        self._tail = echoed + (b"" if index is None else b',"index":%d' % index)
        self._text, self._ids, self._logprobs = bytearray(), bytearray(), bytearray()
        self._version = b'""'
        self.tokens = self._final = self._told = 0
        self._reason = b"null"

    def add(self, delta: Delta) -> bool:
        """More of it came; whether a chunk of a stream is due. Raises Busy for a log-prob that is none."""
        if delta.tokens:
            ids = msgspec.json.encode(delta.tokens)[1:-1]
            self._ids += b"," + ids if self._ids else ids
            if self._logprobs_wanted:
                logprobs = sound(delta.logprobs)
                texts: Sequence[str | None] = delta.texts if self._texts else [None] * len(logprobs)
                rows = msgspec.json.encode(list(zip(logprobs, delta.tokens, texts, strict=True)))[1:-1]
                self._logprobs += b"," + rows if self._logprobs else rows
            self.tokens += len(delta.tokens)
            self._final = delta.tokens[-1]
            self._version = b'"%d"' % delta.version
        self._text += msgspec.json.encode(delta.text)[1:-1]
        return self.tokens - self._told >= max(self._interval, self.tokens // PACE, 1)

    def end(self, last: Last) -> None:
        """It is over."""
        self._text += msgspec.json.encode(last.text)[1:-1]
        self._reason = self._reason_of(last)
        self._versions = last.versions

    def part(self) -> bytes:
        """All so far, before the end."""
        self._told = self.tokens
        return self._json(b',"weight_version":' + self._version)

    def whole(self, latency_s: float) -> bytes:
        """The response; after `end`."""
        spans, start = [], 0
        for version, count in self._versions:
            spans.append(b'{"version":"%d","start":%d,"end":%d}' % (version, start, start + count))
            start += count
        first, last = (self._versions[0][0], self._versions[-1][0]) if self._versions else (None, None)
        stamps = b',"weight_version":%b,"weight_version_start":%b,"weight_version_end":%b' % (
            _stamp(last) if last is not None else b'""',
            msgspec.json.encode(first),
            msgspec.json.encode(last),
        )
        stamps += b',"weight_versions":[%b]' % b",".join(spans)
        return self._json(stamps + b',"num_retractions":0,"e2e_latency":%.6f' % latency_s)

    def _json(self, stamps: bytes) -> bytes:
        parts: list[bytes | bytearray] = [
            b'{"text":"', self._text, b'","output_ids":[', self._ids, b"]", self._head,
            b',"finish_reason":', self._reason, stamps,
            b',"completion_tokens":%d,"cached_tokens":0' % self.tokens,
        ]  # fmt: skip
        if self._logprobs_wanted:
            parts += [
                b',"input_token_logprobs":[],"output_token_logprobs":[', self._logprobs,
                b'],"output_token_logprobs_length":%d' % self.tokens,
            ]  # fmt: skip
        return b"".join([*parts, b"}", self._tail, b"}"])

    def _reason_of(self, last: Last) -> bytes:
        if last.reason == "length":
            late = b',"message":"its deadline passed"' if last.stop_reason == "deadline" else b""
            return b'{"type":"length","length":%d%b}' % (self.tokens, late)
        if last.reason == "stop":
            matched = last.stop_reason if last.stop_reason is not None else self._final
            return b'{"type":"stop","matched":%b}' % msgspec.json.encode(matched)
        return b'{"type":"abort","message":"Aborted by the client","status_code":null,"err_type":null}'


def _stamp(version: int) -> bytes:
    return b'"%d"' % version
