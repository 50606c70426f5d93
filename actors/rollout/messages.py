"""What is said to and by the rollout floor: RolloutManager, its workers, the trainer and the controller."""

from typing import ClassVar

import msgspec

from actors.rollout.events import BatchSubmitted, Prompt, Span
from actors.rollout.pace import Room
from actors.rollout.sampling_params import Sampling
from supervisor import Address, Message


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """A published version: its number, the root digest of its manifest, and who has it.

    `sources` are names of TransferAgents; whoever pulls asks one of them for an offer.
    """

    version: int
    root: bytes
    sources: tuple[str, ...]


class SubmitBatch(Message, frozen=True):
    """To the manager: roll this batch out; `weights` are the newest. Repeating it changes nothing."""

    batch: BatchSubmitted
    weights: Weights


class PublishVersion(Message, frozen=True):
    """To the manager: these are the trainer's newest weights, instances serve them from now on.

    Higher versions that it had published before are lost. Repeating it changes nothing.
    """

    weights: Weights


class MorePrompts(Message, frozen=True):
    """To the controller, from the manager: `count` prompts for the groups of this batch from `first` on. The
    same groups get the same prompts whenever they are asked for."""

    batch: str
    first: int
    count: int


class PromptsAre(Message, frozen=True):
    """The answer, in the order of the groups."""

    prompts: tuple[Prompt, ...]


class GroupFates(Message, frozen=True):
    """To the manager: asks what became of the groups of a batch."""

    batch: str


class GroupFatesAre(Message, frozen=True):
    """Groups that count, uniform ones that were dropped, the surplus that was aborted; in ascending order.
    `again`: samples that were made again alone."""

    kept: list[int]
    dropped: list[int]
    aborted: list[int]
    again: int = 0


class Generate(Message, frozen=True):
    """To the manager: continue this prompt (tokens, u32, raw). Not scored, not trained on.

    id: names the request; whoever asks again with the same id and contents gets the same answer, other
    contents are refused. min_version, exact_version: of the weights, at most one; None: whatever is served.
    wait_s: how long to wait for an instance that meets them. deadline_s: from the first ask on; then it ends
    with what it has. accepted, accepted_sha256: the caller has the first tokens already (their number, the
    SHA-256 of their bytes): only what follows is sent, and refused where they are others. attempt: of the
    caller, for its log and ours. sampling: None leaves the distribution as it is. follower: the name of an
    actor that is told what is made while it is made (`Progress`); "": nobody is. session: of a conversation;
    it goes to the instance that served the last request of it, if that has room; "": anywhere.
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


class HoldBack(Message, frozen=True):
    """To the manager: give no request to an instance for so many seconds (0: from now on again). It ends by
    itself, so whoever holds says so again in time. take_back: what instances have is taken back from them,
    token by token, and waits too."""

    for_s: float
    take_back: bool = False


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """`count` tokens that one version made."""

    version: int
    count: int


class Generated(Message, frozen=True):
    """The response: tokens (u32, raw) and log-probs (f32, raw) from position `start` on.

    status: "stop" (its own end), "length" (max_new_tokens) or "deadline". versions: of all tokens, those
    before `start` too, in order; version_start, version_end: of the first and the last one, None without any.
    sha256: of the bytes of all tokens.
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


class VersionNotReady(Message, frozen=True):
    """No instance serves what was asked for, and `wait_s` is over. Nothing was begun.

    target: the version that was asked for, `exact` or as a minimum. applied: the newest one that is served,
    None for none. retryable: it may come yet; a version that newer ones have replaced does not.
    """

    target: int
    exact: bool
    applied: int | None
    retryable: bool


class TakeGroups(Message, frozen=True):
    """To the manager, from the trainer: groups that are complete, count, and that `taker` does not have.

    Answered when `min_groups` are ready, or all that remain, or after `wait_s`. `have` are the groups that
    the taker holds already: a repeated ask after a lost answer gets the others again. `dropped`: so many
    dropped groups are known to the taker, and the news of another one are worth an answer; None: they are
    not.
    """

    batch: str
    taker: int
    have: list[int]
    min_groups: int
    wait_s: float
    dropped: int | None = None


class SampleOut(msgspec.Struct, frozen=True, kw_only=True):
    """One scored response. `tokens` u32 and `logprobs` f32, raw, little-endian."""

    request: str
    tokens: bytes
    logprobs: bytes
    score: float
    spans: tuple[Span, ...]


class GroupOut(msgspec.Struct, frozen=True, kw_only=True):
    """One complete group: the prompt (u32, raw) and its samples."""

    group: int
    prompt: bytes
    samples: tuple[SampleOut, ...]


class Groups(Message, frozen=True):
    """`remaining` groups are not taken yet; `remote_serving` preemptible instances work on the batch;
    `dropped`: all groups that do not count, so far."""

    groups: list[GroupOut]
    remaining: int
    remote_serving: int
    dropped: list[int] = []


class ReleaseBatch(Message, frozen=True):
    """To the manager: the batch is trained and durable (or read, for an evaluation); forget it."""

    batch: str


class StepEnded(Message, frozen=True):
    """To the manager, from the trainer: the step of this batch is done and its weights are published."""

    batch: str


class BatchReport(Message, frozen=True):
    """Asks for the times of a batch, for Algorithm 1. Refused where its begin was not seen."""

    batch: str


class BatchTimes(Message, frozen=True):
    """From the batch's begin to the step's end, or to now where that was not told. Seconds on the manager's
    clock, tokens, and preemptible instances.

    `mean_prem`, `remote_s`, `remote_wait_s`, `remote_start_s`, `rolled_s`: see `clock.Figures`. `step_s`:
    from begin to end. `next_prem`: instances there now. `reserved_engines`: of all reserved instances;
    `instance_engines`: of one preemptible instance. `reserved`, `preemptible`: the room of one such engine.
    `requests`, `groups`, `limit` (longest response): of the batch; `lengths`: response tokens of some of its
    groups, from the one whose longest response is shortest to the one where it is longest; `prompt_tokens`:
    the mean.
    """

    step_s: float
    mean_prem: float
    next_prem: int
    remote_s: float
    remote_wait_s: float
    remote_start_s: float
    rolled_s: float
    reserved_engines: int
    instance_engines: float
    reserved: Room
    preemptible: Room
    requests: int
    groups: int
    limit: int
    lengths: list[list[int]]
    prompt_tokens: float


class RolloutStatus(Message, frozen=True):
    """Asks for the figures of the live view."""


class RolloutFigures(Message, frozen=True):
    """Requests by state, serving instances by kind, engines of all reserved instances, and sums since the job
    began. tokens_wasted: by cause (`actors.rollout.events.Counters`). busy_preemptible: preemptible instances
    that have requests."""

    queued: int
    pending: int
    executing: int
    serving_reserved: int
    serving_preemptible: int
    tokens_collected: int
    tokens_lost: int
    tokens_generated_twice: int
    requests_migrated: int
    requests_moved: int
    refused: dict[str, int]
    reserved_engines: int = 0
    tokens_wasted: dict[str, int] = {}
    groups_dropped: int = 0
    groups_aborted: int = 0
    samples_again: int = 0
    busy_preemptible: int = 0


class ListInstances(Message, frozen=True):
    """To the manager: asks which instances have registered, and what is served."""

    QUESTION: ClassVar[bool] = True


class InstanceIs(msgspec.Struct, frozen=True, kw_only=True):
    """A registered instance: version of its weights, None before it proved one; requests that wait on it and
    that it executes. leaving: for good."""

    name: str
    incarnation: int
    kind: str
    version: int | None
    pending: int
    executing: int
    leaving: bool


class InstancesAre(Message, frozen=True):
    """In the order of their names. published: the newest version, None for none. queued: requests that wait
    for an instance."""

    instances: list[InstanceIs]
    published: int | None
    queued: int


class RegisterInstance(Message, frozen=True):
    """To the manager, from a worker at its start and whenever it lost the manager.

    `received`: the highest ticket that reached it; later ones were lost on the way and go elsewhere.
    `engines`: copies of the model that serve side by side in it; `slots`, `cache_tokens` (0: what the slots
    may need): of each of them.
    """

    instance: str
    worker: Address
    kind: str
    slots: int
    received: int
    engines: int = 1
    cache_tokens: int = 0


class Registered(Message, frozen=True):
    """Where to stream, and what to serve. `epoch` names this registration: dispatches of others are void."""

    manager: Address
    epoch: str
    stream_endpoint: str
    stream_key: str
    weights: Weights | None = None


class StillRegistered(Message, frozen=True):
    """To the manager, from a worker that has heard nothing: does this registration count? Refused if not.

    A worker that hung may have been given up meanwhile, and no broken link tells it so.
    """

    instance: str
    incarnation: int
    epoch: str


class ServeWeights(Message, frozen=True):
    """To a worker: serve this version from now on."""

    weights: Weights


class Serving(Message, frozen=True):
    """To the manager: this instance proved to serve these weights."""

    instance: str
    incarnation: int
    version: int
    root: bytes


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One dispatch: continue `prompt` + `prefix` (u32, raw) under this ticket. sampling: None leaves the
    distribution as it is."""

    ticket: int
    prompt: bytes
    prefix: bytes
    seed: int
    max_new_tokens: int
    temperature: float
    sampling: Sampling | None = None


class Dispatch(Message, frozen=True):
    """To a worker: these requests, all under `version`; refused unless `epoch` is its registration."""

    epoch: str
    version: int
    work: list[Work]


class Abort(Message, frozen=True):
    """To a worker: end these tickets; its stream says when each one has ended."""

    tickets: list[int]


class CannotTake(Message, frozen=True):
    """To the manager: a worker could not take these tickets (another version, full, ill-fitting). `version`:
    what it serves now, where it serves any. `never`: one of them is ill-fitting, under any version."""

    instance: str
    incarnation: int
    tickets: list[int]
    why: str
    version: int | None = None
    never: bool = False


class Withdraw(Message, frozen=True):
    """To the manager: give this instance nothing more; hand its requests over.

    What executes may finish within `grace_s`. Answered when the instance holds nothing. `leaves`: for good
    (its host goes away); otherwise it may serve again later.
    """

    instance: str
    grace_s: float
    leaves: bool = False


class Withdrawn(Message, frozen=True):
    """`handed_over` requests go on elsewhere."""

    handed_over: int


class NewWork(Message, frozen=True):
    """To the manager: whether this instance may get new requests. Repeating it changes nothing.

    Not `allowed`: its host may go away, and what it has goes on there. `allowed`: its host stays after all,
    and it keeps what a withdrawal has not taken from it yet. One that is not registered is left as it is.
    """

    instance: str
    allowed: bool


class RequestLedger(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one request: its token count, the CRC-32 of its tokens (u32, raw), its spans, its
    score. dropped: why it did not count, "" if it did."""

    request: str
    count: int
    crc: int
    spans: tuple[Span, ...]
    score: float
    status: str
    dropped: str = ""


class BatchLedger(Message, frozen=True):
    """Journaled at release: the audit trail of a batch. min_version: see `BatchSubmitted`."""

    batch: str
    version: int
    requests: tuple[RequestLedger, ...]
    min_version: int | None = None
