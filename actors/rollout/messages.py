"""What is said to and by the rollout floor: RolloutManager, its workers, the trainer and the controller."""

import msgspec

from actors.rollout.events import BatchSubmitted, Span
from supervisor import Address, Message


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """A published version: its number, the root digest of its manifest, and who has it.

    `sources` are names of TransferAgents; whoever pulls asks one of them for an offer.
    """

    version: int
    root: bytes
    sources: tuple[str, ...]


class SubmitBatch(Message, frozen=True):
    """To the manager: roll this batch out under these weights. Repeating it changes nothing."""

    batch: BatchSubmitted
    weights: Weights


class TakeGroups(Message, frozen=True):
    """To the manager, from the trainer: complete groups that `taker` does not have.

    Answered when `min_groups` are ready, or all that remain, or after `wait_s`. `have` are the groups that
    the taker holds already: a repeated ask after a lost answer gets the others again.
    """

    batch: str
    taker: int
    have: list[int]
    min_groups: int
    wait_s: float


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
    """`remaining` groups are not taken yet; `remote_serving` preemptible instances work on the batch."""

    groups: list[GroupOut]
    remaining: int
    remote_serving: int


class ReleaseBatch(Message, frozen=True):
    """To the manager: the batch is trained and durable (or read, for an evaluation); forget it."""

    batch: str


class BatchReport(Message, frozen=True):
    """Asks for the times of a batch, for Algorithm 1."""

    batch: str


class BatchTimes(Message, frozen=True):
    """Seconds on the manager's clock, and preemptible instances.

    `remote_s`: from the first dispatch to a preemptible instance to the last response; `since_last_s`: since
    the last response; `mean_prem`: serving preemptible instances averaged over the batch; `next_prem`: now.
    """

    remote_s: float
    since_last_s: float
    mean_prem: float
    next_prem: int


class RolloutStatus(Message, frozen=True):
    """Asks for the figures of the live view."""


class RolloutFigures(Message, frozen=True):
    """Requests by state, serving instances by kind, and sums since the job began."""

    queued: int
    pending: int
    executing: int
    serving_reserved: int
    serving_preemptible: int
    tokens_collected: int
    tokens_lost: int
    tokens_generated_twice: int
    requests_migrated: int
    refused: dict[str, int]


class RegisterInstance(Message, frozen=True):
    """To the manager, from a worker at its start and whenever it lost the manager.

    `received`: the highest ticket that reached it; later ones were lost on the way and go elsewhere.
    """

    instance: str
    worker: Address
    kind: str
    slots: int
    received: int


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
    """One dispatch: continue `prompt` + `prefix` (u32, raw) under this ticket."""

    ticket: int
    prompt: bytes
    prefix: bytes
    seed: int
    max_new_tokens: int
    temperature: float


class Dispatch(Message, frozen=True):
    """To a worker: these requests, all under `version`; refused unless `epoch` is its registration."""

    epoch: str
    version: int
    work: list[Work]


class Abort(Message, frozen=True):
    """To a worker: end these tickets; its stream says when each one has ended."""

    tickets: list[int]


class CannotTake(Message, frozen=True):
    """To the manager: a worker could not take these tickets (another version, full, ill-fitting)."""

    instance: str
    incarnation: int
    tickets: list[int]
    why: str


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
    """Journaled at release: the audit trail of a batch."""

    batch: str
    version: int
    requests: tuple[RequestLedger, ...]
