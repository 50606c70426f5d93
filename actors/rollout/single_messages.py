"""What is said of a single request: who asks for it, follows it and no longer wants it, and the answers.

Batches of a job are in `messages`, as is what the manager and its instances say of any request.
"""

import msgspec

from actors.rollout.events import Span
from actors.rollout.sampling_params import Sampling
from actors.rollout.score_rows import Scores
from supervisor import Message

BATCH = "generate-"
"""Begins the name of the batch that a single request is."""


class Generate(Message, frozen=True):
    """To the manager: continue this prompt (tokens, u32, raw). Not scored, not trained on.

    id: names the request; whoever asks again with the same id and contents gets the same answer, other
    contents are refused. min_version, exact_version: of the weights, at most one; None: whatever is served.
    wait_s: how long to wait for an instance that meets them. deadline_s: from the first ask on; then it ends
    with what it has. accepted, accepted_sha256: the caller has the first tokens already (their number, the
    SHA-256 of their bytes): only what follows is sent, and refused where they are others. attempt: of the
    caller, for its log and ours. sampling: None leaves the distribution as it is. follower: the name of an
    actor that is told what is made while it is made (`Progress`); "": nobody is. session: of a conversation;
    it goes to the instance that served the last request of it, if that has room; "": anywhere. experts: the
    follower is told too which experts the tokens were routed to (`ExpertRows`), as each attempt ends; scores:
    in their place, which tokens were likeliest.
    """

    id: str
    prompt: bytes
    max_new_tokens: int
    temperature: float = 1.0
    seed: int = 0
    min_version: int | None = None
    exact_version: int | None = None
    wait_s: float = 0.0
    deadline_s: float = 60.0
    accepted: int = 0
    accepted_sha256: bytes = b""
    attempt: int = 1
    sampling: Sampling | None = None
    follower: str = ""
    session: str = ""
    experts: bool = False
    scores: Scores | None = None


class ProgressItem(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens (u32, raw) and log-probs (f32, raw) of request `id` from position `start` on; `version` made the
    last of them."""

    id: str
    start: int
    tokens: bytes
    logprobs: bytes
    version: int


class Progress(Message, frozen=True):
    """To a follower of single requests, from the manager: what was made since the last one, all of it in the
    journal. At most once: where `start` shows a gap, ask again with what was accepted."""

    items: list[ProgressItem]


class Cancel(Message, frozen=True):
    """To the manager: nobody waits for these single requests any more. What is under way ends as it stands
    (its ask is answered with status "deadline"), what is over is forgotten. Unknown ids change nothing."""

    ids: list[str]


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """`count` tokens that one version made."""

    version: int
    count: int


class Generated(Message, frozen=True):
    """The response: tokens (u32, raw) and log-probs (f32, raw) from position `start` on.

    status: "stop" (its own end), "length" (max_new_tokens, or its engine has no more room) or "deadline".
    versions: of all tokens, those before `start` too, in order; version_start, version_end: of the first and
    the last one, None without any.
    sha256: of the bytes of all tokens. spans: which attempt made which tokens, where experts were asked for.
    """

    id: str
    status: str
    start: int
    tokens: bytes
    logprobs: bytes
    versions: tuple[VersionSpan, ...]
    version_start: int | None
    version_end: int | None
    sha256: bytes
    spans: tuple[Span, ...] = ()


class VersionNotReady(Message, frozen=True):
    """No instance serves what was asked for, and `wait_s` is over. Nothing was begun.

    target: the version that was asked for, `exact` or as a minimum. applied: the newest one that is served,
    None for none. retryable: it may come yet; a version that newer ones have replaced does not.
    """

    target: int
    exact: bool
    applied: int | None
    retryable: bool
