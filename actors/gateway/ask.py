"""Ask: one request of a route to the gateway, its tokens as they arrive, its end.

Owns these types and the port `Requests` that answers them. Pure: neither HTTP nor a message is known here, so
the wires (SGLang's, OpenAI's, vLLM's) are written and tested against a fake of `Requests`.
"""

import hashlib
from array import array
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gleaner.actors.protocol.sampling_params import PLAIN, Sampling
from gleaner.actors.protocol.score_rows import Scores

Status = Literal["stop", "length", "deadline", "abort"]
"""Why a request ended: by itself, at `max_new_tokens`, at its deadline, or because a client aborted it."""

MAX_ID = 200
"""Characters of an id."""


@dataclass(frozen=True, slots=True)
class Routed:
    """Which experts tokens were routed to: a row (layers x experts of a token) for each token of prompt and
    response but the last, when it was read to make the next one. `rows`: of uint8, uint16 or int32."""

    rows: NDArray[np.generic]

    def first(self, count: int) -> "Routed":
        """The rows of the first tokens alone."""
        return Routed(self.rows[: max(0, count)])


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. The same id with the same contents is the same request (docs/versions.md).

    id: 1 to 200 characters without a slash. named: the client chose the id, so it may return for the rest; a
    named request that is left unread does not end. prompt: tokens, u32. seed: of the sampling; see `seed_of`.
    min_version, exact_version: of the weights, at most one. wait_s: for weights that fit. deadline_s: counted
    from the first submission; then the request ends with its tokens so far. session: of a client that prefers
    the engine that served it before; "" for none. experts: `End.experts` is wanted. prompt_only: an engine
    reads the prompt; the one token that it makes then is not returned. scores: `End.experts` is of the
    likeliest tokens (`score_rows`). whole: no token is wanted before the end, so that a request that no
    engine can continue (`Sampling.continues`) may be restarted.
    """

    id: str
    prompt: "array[int]"
    max_new_tokens: int
    temperature: float = 1.0
    seed: int = 0
    sampling: Sampling = field(default=PLAIN)
    min_version: int | None = None
    exact_version: int | None = None
    wait_s: float = 0.0
    deadline_s: float = 600.0
    session: str = ""
    named: bool = False
    experts: bool = False
    prompt_only: bool = False
    scores: Scores | None = None
    whole: bool = False

    @property
    def rows(self) -> bool:
        """Whether engines have to report a row of each token."""
        return self.experts or self.scores is not None

    @property
    def gated(self) -> bool:
        """Whether it requires certain versions."""
        return self.min_version is not None or self.exact_version is not None


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that follow those of the piece before, with their log-probs. version: it made the last of them,
    and those before it except after an unreported change; `End.versions` is exact. Never empty; tokens that
    arrived while no client read are one piece."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    version: int


@dataclass(frozen=True, slots=True)
class End:
    """Yielded once, after the last piece.

    versions: (version, number of tokens) of all tokens, in order, neighbours of one version as one.
    version_start, version_end: of the first and the last token, None without any. experts: if they were
    requested and there is a token.
    """

    status: Status
    versions: tuple[tuple[int, int], ...] = ()
    version_start: int | None = None
    version_end: int | None = None
    experts: Routed | None = None


class AskError(Exception):
    """A request that gets no tokens. `retryable`: the same may be answered later, after `retry_after_s`
    seconds."""

    retryable = False
    retry_after_s = 1.0


class BadAsk(AskError):
    """An invalid request, or one that is not served here. field: of the body, "" for none."""

    def __init__(self, why: str, field: str = "") -> None:
        super().__init__(f"{field}: {why}" if field else why)
        self.field = field


class NotReady(AskError):
    """No instance serves the requested version, and `wait_s` is over. Nothing was started.

    target: as requested, `exact` or as a minimum. applied: the newest one that is served, None for none.
    """

    def __init__(self, target: int, exact: bool, applied: int | None, retryable: bool) -> None:
        kind = "exactly version" if exact else "version"
        least = "" if exact else " or newer"
        served = "none" if applied is None else str(applied)
        super().__init__(f"{kind} {target}{least} is not served; the newest that is: {served}")
        self.target, self.exact, self.applied, self.retryable = target, exact, applied, retryable


class Busy(AskError):
    """Not now: too many requests, or no component that can take one. A retry loses nothing."""

    retryable = True

    def __init__(self, why: str, retry_after_s: float = 1.0) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class Requests(Protocol):
    """Answers asks. Callers do not see engines and managers that die meanwhile."""

    def stream(self, ask: Ask) -> AsyncGenerator[Piece | End, None]:
        """The pieces of a request, then its end.

        Closing it (`aclose`) before the end leaves the request: it is cancelled, unless it is `named` or has
        another reader. A repeated ask gets the request from its first token on. A slow reader gets fewer,
        larger pieces. Raises BadAsk, NotReady or Busy, before the first piece, or in the middle if the
        manager no longer knows the request.
        """

    async def abort(self, ids: Iterable[str] | None) -> int:
        """End these requests, None: all, with the tokens they have and the status "abort"; returns their
        number. An id of a batch (`sub_id`) ends with its batch. Unknown ids are ignored."""


class Decoder(Protocol):
    """The part of a tokenizer that incremental text needs; `tokenizers.Tokenizer` has it."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...
    def id_to_token(self, id: int) -> str | None: ...
    def token_to_id(self, token: str) -> int | None: ...


class Vocabulary(Protocol):
    """The tokenizer of the served model, with its chat template."""

    @property
    def tokenizer(self) -> Decoder: ...

    @property
    def special(self) -> frozenset[int]:
        """Tokens that are no text."""

    @property
    def template(self) -> str:
        """The chat template, "" for none."""

    def encode_text(self, text: str, special: bool = False) -> list[int]:
        """Tokens of a text as it is; `special`: with those that the tokenizer puts around one."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, without special ones."""

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        generation_prompt: bool = True,
        names: Mapping[str, object] | None = None,
    ) -> str:
        """A conversation as text, for `encode_text` without special tokens. Raises ValueError with the
        template's message."""


def sub_id(id: str, index: int) -> str:
    """The id of one of several requests that a client sent under one id."""
    return f"{id}.{index}"


def seed_of(id: str) -> int:
    """The seed of a request whose client gave none; derived from the id, so a repeated id is the same
    request."""
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:4], "little") & 0x7FFFFFFF
