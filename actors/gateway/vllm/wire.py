"""vLLM structs of its own calls: tokens in, tokens out, and its tokenizer.

Owns the fields of `/inference/v1/generate` as prime-rl's renderers and SkyRL read them, of `/tokenize` and
`/detokenize`. Fields whose type is null alone are not offered. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gleaner.actors.gateway.ask import BadAsk, Routed
from gleaner.actors.gateway.calls import VersionGate
from gleaner.actors.gateway.choices import Delta, Last, sound
from gleaner.actors.gateway.openai.requests import Message, Scalar, Seed, Token
from gleaner.actors.gateway.openai.shape import stamps
from gleaner.actors.gateway.openai.wire import Stamps, Usage, Versions
from gleaner.actors.protocol.sampling_params import Sampling


class SamplingParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's fields, as far as they are offered. logprobs: 0 and 1 both return the sampled token's, the only
    one that is returned here. routed_experts_prompt_start: the first token whose experts are returned, if
    they are."""

    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Token] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    max_tokens: Annotated[int | UnsetType | None, Meta(description="Left out: 16; null: what fits.")] = UNSET
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=1)] | None = None
    detokenize: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    routed_experts_prompt_start: Annotated[int, Meta(ge=0)] | None = None
    prompt_logprobs: None = None
    logit_bias: None = None
    bad_words: Annotated[list[str], Meta(max_length=0)] | None = None
    allowed_token_ids: None = None
    structured_outputs: None = None
    truncate_prompt_tokens: None = None
    extra_args: None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def sampling(self) -> Sampling:
        return Sampling(
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or -1,
            min_p=self.min_p or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            min_new_tokens=self.min_tokens or 0,
            ignore_eos=bool(self.ignore_eos),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            stop=self.stops,
        )


class GenerateRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `/inference/v1/generate`. routed_experts_format: as an object, which prime-rl and SkyRL read,
    or as base64 of an .npy file, which newer vLLM returns."""

    token_ids: list[Token]
    sampling_params: SamplingParams = msgspec.field(default_factory=SamplingParams)
    model: str | None = None
    request_id: str | None = None
    stream: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    session_id: str | None = None
    weight_version: VersionGate | None = None
    routed_experts_format: Literal["object", "npy"] = "object"
    stream_options: None = None
    features: None = None
    content_parts: None = None
    kv_transfer_params: None = None

    def check(self) -> None:
        """Raises BadAsk with the name of a field that is not offered."""
        for name, why in self._not_offered():
            raise BadAsk(why, name)

    def _not_offered(self) -> Iterator[tuple[str, str]]:
        if self.stream:
            yield "stream", "not offered on this route: /v1/completions streams, with return_token_ids"
        if self.priority:
            yield "priority", "not offered: requests are served in the order in which they come; send 0"


class TokenLogprob(msgspec.Struct, kw_only=True):
    """The token by both names that clients look for: "token_id:N" and N."""

    token: str
    token_id: int
    logprob: float
    top_logprobs: list[str] = []


class GenerateLogprobs(msgspec.Struct, kw_only=True):
    content: list[TokenLogprob]


class RoutedExperts(msgspec.Struct, kw_only=True):
    """Which experts tokens were routed to. data: base64; shape: tokens of prompt and response but the last,
    layers, experts of a token; dtype: of numpy. Clients cut `data` out of the bytes, so it is first."""

    data: str
    shape: tuple[int, int, int]
    dtype: str


class GenerateChoice(msgspec.Struct, kw_only=True):
    """weight_versions: (version, number of tokens) of its tokens, in order."""

    index: int
    token_ids: list[int]
    finish_reason: Literal["stop", "length", "abort"]
    stop_reason: int | str | None = None
    logprobs: GenerateLogprobs | None = None
    routed_experts: RoutedExperts | str | None = None
    weight_versions: Versions


class GenerateAnswer(Stamps, kw_only=True):
    """Answer of `/inference/v1/generate`."""

    request_id: str
    choices: list[GenerateChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: None = None
    kv_transfer_params: None = None


class Generated:
    """The choices of a call, assembled as they arrive. Raises Busy for a log-prob that is not a number. tell:
    converts experts to their form on the wire."""

    def __init__(
        self,
        id: str,
        prompt: Sequence[int],
        choices: int,
        logprobs: bool,
        echo_ids: bool,
        tell: Callable[[Routed], RoutedExperts | str] | None = None,
    ) -> None:
        self._tell = tell
        self._id, self._prompt, self._logprobs, self._echo_ids = id, prompt, logprobs, echo_ids
        self._tokens: list[list[int]] = [[] for _ in range(choices)]
        self._content: list[list[TokenLogprob]] = [[] for _ in range(choices)]
        self._last: list[Last | None] = [None] * choices

    def take(self, update: Delta | Last) -> None:
        if isinstance(update, Last):
            self._last[update.index] = update
            return
        self._tokens[update.index] += update.tokens
        if self._logprobs:
            self._content[update.index] += [
                TokenLogprob(token=f"token_id:{token}", token_id=token, logprob=logprob)
                for token, logprob in zip(update.tokens, sound(update.logprobs), strict=True)
            ]

    def whole(self) -> GenerateAnswer:
        """The answer, once every choice has ended."""
        ended = [last for last in self._last if last is not None]
        assert len(ended) == len(self._last), "reported before every choice had ended"
        seen = stamps([last.versions for last in ended])
        prompt, made = len(self._prompt), sum(len(tokens) for tokens in self._tokens)
        return GenerateAnswer(
            request_id=self._id,
            choices=[
                GenerateChoice(
                    index=last.index,
                    token_ids=self._tokens[last.index],
                    finish_reason=last.reason,
                    stop_reason=last.stop_reason,
                    logprobs=GenerateLogprobs(content=self._content[last.index]) if self._logprobs else None,
                    routed_experts=None
                    if self._tell is None or last.experts is None
                    else self._tell(last.experts),
                    weight_versions=list(last.versions),
                )
                for last in ended
            ],
            usage=Usage(prompt_tokens=prompt, completion_tokens=made, total_tokens=prompt + made),
            prompt_token_ids=list(self._prompt) if self._echo_ids else UNSET,
            weight_version=seen.weight_version,
            weight_version_start=seen.weight_version_start,
            weight_version_end=seen.weight_version_end,
        )


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `/tokenize`: a prompt, or messages for the model's chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Scalar] | None = None
    return_token_strs: bool | None = None


class TokenizeAnswer(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    tokens: list[Token]


class DetokenizeAnswer(msgspec.Struct, kw_only=True):
    """prompt: the text, special tokens included."""

    prompt: str


class RenderAnswer(msgspec.Struct, kw_only=True):
    """A conversation as the tokens of its prompt."""

    request_id: str
    model: str
    token_ids: list[int]
    features: None = None


class Session(msgspec.Struct, kw_only=True):
    session_id: str = ""


class Ok(msgspec.Struct, kw_only=True):
    status: Literal["ok"] = "ok"
