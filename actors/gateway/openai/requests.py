"""OpenAI requests: structs of completions and chat, with vLLM's additions.

Owns the fields, and which of them are offered. A field that would change the response and is not offered is
refused by its name; those that change nothing are accepted. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.gateway.calls import VersionGate
from gleaner.actors.gateway.openai.formats import Formats, biases
from gleaner.actors.gateway.openai.tools import Choice, Tool, demanded, offered
from gleaner.actors.gateway.openai.wire import CallIs
from gleaner.actors.protocol.sampling_params import Grammar, Sampling
from gleaner.actors.protocol.score_rows import MOST_TOP, Scores

MOST_CHOICES = 1024
"""Limit of prompts times `n` of one call."""
DEFAULT_TOKENS = 16
"""OpenAI's and vLLM's default for a completion without a limit."""

Token = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Scalar = str | int | float | bool | None
Taken = Annotated[Any, Meta(description="Taken; it changes nothing.")]


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """include_usage: a last chunk with the number of tokens."""

    include_usage: bool | None = None
    continuous_usage_stats: Annotated[bool | None, Meta(description="Not offered: only false.")] = None


class Harmless(Formats, kw_only=True, forbid_unknown_fields=True):
    """Fields that a client may send and that change nothing here: nothing is stored, and all requests are
    served alike. The template sets how much a model thinks or writes (`chat_template_kwargs`)."""

    store: Taken = None
    metadata: Taken = None
    service_tier: Taken = None
    user: Taken = None
    safety_identifier: Taken = None
    prompt_cache_key: Taken = None
    prompt_cache_retention: Taken = None
    prompt_cache_options: Taken = None


class Common(Harmless, kw_only=True, forbid_unknown_fields=True):
    """Fields of completions and chat. Fields whose type is null alone are not offered. logit_bias: of tokens,
    by their number."""

    model: str | None = None
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
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    request_id: str | None = None
    session_id: str | None = None
    weight_version: VersionGate | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: Annotated[list[str], Meta(max_length=0)] | None = None
    allowed_token_ids: None = None
    prompt_logprobs: None = None
    truncate_prompt_tokens: None = None
    logits_processors: None = None
    kv_transfer_params: None = None

    @property
    def scores(self) -> Scores | None:
        """The rows that engines have to report; None for none."""
        return None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings; the gateway cuts the text, whether or not the engine knows text."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def sampling(self) -> Sampling:
        """The sampling settings. Raises BadAsk with the name of a field that is not offered."""
        for name, why in self._not_offered():
            raise BadAsk(why, name)
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
            logit_bias=biases(self.logit_bias),
            grammar=self.grammar(),
        )

    def _not_offered(self) -> Iterator[tuple[str, str]]:
        if self.use_beam_search:
            yield "use_beam_search", "not offered: tokens are sampled"
        if self.length_penalty not in (None, 1.0):
            yield "length_penalty", "not offered: it belongs to beam search"
        if self.priority:
            yield "priority", "not offered: requests are served in the order in which they come; send 0"
        options = self.stream_options
        if options is not None and options.continuous_usage_stats:
            yield "stream_options.continuous_usage_stats", "not offered: send include_usage"


class CompletionRequest(Common, kw_only=True, forbid_unknown_fields=True):
    """Body of `/v1/completions`. prompt: a text, texts, tokens, or lists of tokens. logprobs: with this many
    of the likeliest tokens; echo: with those of the prompt. max_tokens: 0 returns the prompt alone."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Annotated[int | UnsetType | None, Meta(description="Left out: 16; null: what fits.")] = UNSET
    logprobs: Annotated[int, Meta(ge=0, le=MOST_TOP)] | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None

    @property
    def scores(self) -> Scores | None:
        """The rows that engines have to report; None if the log-probs of the response are enough."""
        if not self.logprobs and not (self.echo and self.wants_logprobs):
            return None
        return Scores(top=self.logprobs or 0, prompt=bool(self.echo))

    def prompts(self) -> list[str] | list[list[int]]:
        """All prompts, each a text or tokens. Raises BadAsk."""
        given = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if not given:
            raise BadAsk("expected a text, tokens, or a list of them, got an empty list", "prompt")
        texts = [one for one in given if isinstance(one, str)]
        if len(texts) == len(given):
            return texts
        tokens = [one for one in given if isinstance(one, int)]
        if len(tokens) == len(given):
            return [tokens]
        lists = [one for one in given if isinstance(one, list)]
        if len(lists) == len(given):
            return lists
        raise BadAsk("expected texts alone, tokens alone, or lists of tokens alone", "prompt")

    def _not_offered(self) -> Iterator[tuple[str, str]]:
        yield from super()._not_offered()
        if self.best_of is not None and self.best_of != self.choices:
            yield "best_of", "not offered: ask for as many choices with n"


class Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Part of a message's content; only text is offered."""

    type: Literal["text"]
    text: str


class CallMade(CallIs, kw_only=True):
    """A call that an earlier turn made."""

    def for_template(self) -> dict[str, object]:
        """In the form of chat templates: with the arguments as an object. Raises BadAsk."""
        try:
            arguments = msgspec.json.decode(self.function.arguments or "{}", type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as problem:
            raise BadAsk(
                f"expected a JSON object, {problem}", "messages.tool_calls.function.arguments"
            ) from None
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn. Fields whose type is null alone are not offered."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[CallMade] | None = None
    function_call: None = None
    refusal: str | None = None
    annotations: Annotated[list[str], Meta(max_length=0)] | None = None
    audio: None = None

    def for_template(self) -> dict[str, object]:
        """In the form of chat templates: only the keys that are set, and content as one text. The role of
        developers becomes system, which templates know. Raises BadAsk."""
        content = self.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        turn: dict[str, object] = {"role": role, "content": content or self.refusal or ""}
        for key in ("name", "reasoning_content", "tool_call_id"):
            if (value := getattr(self, key)) is not None:
                turn[key] = value
        if self.tool_calls:
            turn["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return turn


class ChatRequest(Common, kw_only=True, forbid_unknown_fields=True):
    """Body of `/v1/chat/completions`. parallel_tool_calls: false allows one call where calls are demanded."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_TOP)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Scalar] | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: Choice = None
    tools: list[Tool] | None = None
    reasoning_effort: Taken = None
    verbosity: Taken = None
    modalities: list[Literal["text"]] | None = None
    prediction: Taken = None
    chat_template: None = None
    documents: None = None

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.logprobs)

    @property
    def scores(self) -> Scores | None:
        """The rows that engines have to report; None for none."""
        return Scores(top=self.top_logprobs) if self.top_logprobs else None

    def grammar(self) -> Grammar | None:
        """The grammar of the text: of the calls that must be made, or the requested one. Raises BadAsk."""
        tools = offered(self.tools, self.tool_choice)
        calls = demanded(tools, self.tool_choice, self.parallel_tool_calls is not False)
        asked = super().grammar()
        if calls is not None and asked is not None:
            raise BadAsk(
                "a call that is demanded and a form of the answer exclude each other", "response_format"
            )
        return calls or asked

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def _not_offered(self) -> Iterator[tuple[str, str]]:
        yield from super()._not_offered()
        if self.top_logprobs and not self.logprobs:
            yield "top_logprobs", "needs logprobs: true"
        if self.continue_final_message:
            yield "continue_final_message", "not offered: send the rendered tokens to /v1/completions"
