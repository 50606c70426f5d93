"""Messages of single requests: submit, follow, cancel, and the answers.

`rollout` has batches of a job and what the manager and its instances exchange about any request.
"""

import msgspec

from gleaner.actors.protocol.batches import Span
from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.actors.protocol.score_rows import Scores
from gleaner.supervisor import Message

BATCH = "generate-"
"""Prefix of the name of the batch that holds a single request."""


class Generate(Message, frozen=True):
    """To the manager: continue this prompt (tokens, u32, raw). Not scored, not trained on.

    id: names the request; the same id with the same contents gets the same answer, other contents are
    refused. min_version, exact_version: of the weights, at most one of the two; None: whatever is served.
    wait_s: how long to wait for an instance that meets them. deadline_s: counted from the first submission;
    then the request ends with the tokens it has. accepted, accepted_sha256: the caller has the first tokens
    already (their number, the SHA-256 of their bytes); only the rest is sent. The request is refused if those
    tokens differ. attempt: of the caller, for its log and ours. sampling: None leaves the distribution as it
    is. follower: the name of an actor that receives the tokens while they are made (`Progress`); "": none.
    session: of a conversation; the request goes to the instance that served the session's last request, if
    that has free capacity; "": anywhere. experts: the follower also receives which experts the tokens were
    routed to (`ExpertRows`), as each attempt ends. scores: in place of experts, which tokens were likeliest.
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
    """To a follower of single requests, from the manager: the tokens made since the last message, all of them
    in the journal. Delivered at most once: if `start` shows a gap, submit again with the accepted tokens."""

    items: list[ProgressItem]


class Cancel(Message, frozen=True):
    """To the manager: no caller waits for these single requests any more. A running request ends with the
    tokens it has (its caller gets status "deadline"); a finished one is forgotten. Unknown ids change
    nothing."""

    ids: list[str]


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """`count` tokens that one version made."""

    version: int
    count: int


class Generated(Message, frozen=True):
    """The response: tokens (u32, raw) and log-probs (f32, raw) from position `start` on.

    status: "stop" (its own end), "length" (max_new_tokens, or its engine has no more capacity) or "deadline".
    versions: of all tokens, those before `start` too, in order. version_start, version_end: of the first and
    the last token, None without any. sha256: of the bytes of all tokens. spans: which attempt made which
    tokens, if experts were requested.
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
    """No instance serves the requested version, and `wait_s` is over. Nothing was started.

    target: the requested version, `exact` or as a minimum. applied: the newest version that is served, None
    for none. retryable: the version may still be served later; a version that newer ones have replaced is
    not.
    """

    target: int
    exact: bool
    applied: int | None
    retryable: bool
