"""Messages of RolloutManager, trainer and controller: batches, groups, versions.

Single requests: `requests`. Instances and the work dispatched to them: `instances`.
"""

import msgspec

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt, Span
from gleaner.actors.protocol.critical_path import CriticalPath
from gleaner.actors.protocol.reward import Sickness
from gleaner.actors.protocol.throughput import Room
from gleaner.supervisor import Message


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """A published version: its number, the root digest of its manifest, and its sources.

    `sources` are names of TransferAgents; a receiver requests an offer from one of them.
    """

    version: int
    root: bytes
    sources: tuple[str, ...]


class SubmitBatch(Message, frozen=True):
    """To the manager: roll this batch out; `weights` are the newest. Idempotent."""

    batch: BatchSubmitted
    weights: Weights


class PublishVersion(Message, frozen=True):
    """To the manager: these are the trainer's newest weights, which instances serve from now on. Idempotent.

    Higher versions that the trainer published before are lost. `ascending`: no version may be lost; the
    manager refuses if there is a higher version, or another one of this number. `tried`: the version is
    published only once an instance has loaded it. The answer waits for that; it is `NotPublished` if the load
    fails.
    """

    weights: Weights
    ascending: bool = False
    tried: bool = False


class NotPublished(Message, frozen=True):
    """These weights were tried and rejected; instances serve what they served before. `why`: the message of
    the engine that tried them. `lost`: the instance was lost meanwhile; another one might load them."""

    version: int
    why: str
    lost: bool = False


class WeightsFailed(Message, frozen=True):
    """To the controller. From the manager: instances could not load what the job's trainer published. From an
    agent: the version could not be published. No step can follow."""

    version: int
    why: str


class MorePrompts(Message, frozen=True):
    """To the controller, from the manager: asks for `count` prompts, for the groups of this batch from
    `first` on. The same groups always get the same prompts."""

    batch: str
    first: int
    count: int


class PromptsAre(Message, frozen=True):
    """The answer, in the order of the groups."""

    prompts: tuple[Prompt, ...]


class GroupFates(Message, frozen=True):
    """To the manager: asks for the outcome of each group of a batch."""

    batch: str


class GroupFatesAre(Message, frozen=True):
    """Groups that count, uniform groups that were dropped, surplus groups that were aborted; in ascending
    order. `again`: samples that were generated again alone. For each of `finished` and `cut_off` the number
    of responses by their tokens, as pairs: those that ended, and those that were aborted. edge: tokens of the
    longest response of the groups that count. trained: sum of the tokens of these groups, and their
    responses. surplus_tokens: of the responses that are surplus, those that ended included."""

    kept: list[int]
    dropped: list[int]
    aborted: list[int]
    again: int = 0
    finished: list[tuple[int, int]] = []
    cut_off: list[tuple[int, int]] = []
    edge: int = 0
    trained: tuple[int, int] = (0, 0)
    surplus_tokens: int = 0


class HoldBack(Message, frozen=True):
    """To the manager: dispatch no request to an instance for `for_s` seconds (0: dispatch again from now on).
    The hold expires by itself, so its sender renews it in time. take_back: the manager also requeues the
    requests that instances hold, each with its tokens so far."""

    for_s: float
    take_back: bool = False


class TakeGroups(Message, frozen=True):
    """To the manager, from the trainer: asks for groups that are complete, count, and that `taker` does not
    have.

    Answered when `min_groups` are ready, or all that remain, or after `wait_s`. `have`: groups that the taker
    holds already; when it asks again after a lost answer it gets the others again. `dropped`: the number of
    dropped groups that the taker knows; one more is worth an answer. None: it is not. `until_served`:
    answered at once when a preemptible instance works on the batch. `ended`: answered at once when this share
    of the batch's requests needs no engine any more; the answer has `ended` and `half_fits`. None: it has
    neither.
    """

    batch: str
    taker: int
    have: list[int]
    min_groups: int
    wait_s: float
    dropped: int | None = None
    until_served: bool = False
    ended: float | None = None


class SampleOut(msgspec.Struct, frozen=True, kw_only=True):
    """One response with its verdict. `tokens` u32 and `logprobs` f32, raw, little-endian. score: None if its
    verifier failed for good; the sample is then in no gradient and in no mean."""

    request: str
    tokens: bytes
    logprobs: bytes
    score: float | None
    spans: tuple[Span, ...]


class GroupOut(msgspec.Struct, frozen=True, kw_only=True):
    """One complete group: the prompt (u32, raw) and its samples."""

    group: int
    prompt: bytes
    samples: tuple[SampleOut, ...]


class Groups(Message, frozen=True):
    """`remaining` groups are not taken yet; `remote_serving` preemptible instances work on the batch.
    `dropped`: all groups that do not count, so far. `collected`: tokens that the manager has logged so far,
    of any batch; while this number grows, rollout makes progress. `ended`: share of the batch's requests that
    needs no engine any more. `half_fits`: whether half of the engines of the reserved hosts have enough cache
    for all requests that are left, as they are expected to grow."""

    groups: list[GroupOut]
    remaining: int
    remote_serving: int
    dropped: list[int] = []
    collected: int = 0
    ended: float = 0.0
    half_fits: bool = False


class ReleaseBatch(Message, frozen=True):
    """To the manager: forget the batch; it is trained and durable (or read, for an evaluation)."""

    batch: str


class StepEnded(Message, frozen=True):
    """To the manager, from the trainer: the step of this batch is done and its weights are published."""

    batch: str


class BatchesWhole(Message, frozen=True):
    """To the controller, from the manager, in a job whose engines may change their width: of these open
    batches all groups that count are there, and no request of any batch or caller waits or has an instance.
    It may be lost."""

    batches: tuple[str, ...]


class BatchReport(Message, frozen=True):
    """Asks for the times of a batch, for Algorithm 1. Refused if the manager did not see its start."""

    batch: str


class BatchTimes(Message, frozen=True):
    """From the batch's start to the step's end, or to now if no `StepEnded` was received. Seconds on the
    manager's clock, tokens, and preemptible instances.

    `mean_prem`, `remote_s`, `remote_wait_s`, `remote_start_s`, `rolled_s`: see `clock.Figures`. `step_s`:
    from start to end. `next_prem`: instances present now. `reserved_engines`: of all reserved instances;
    `instance_engines`: of one preemptible instance. `reserved`, `preemptible`: the capacity of one such
    engine. `requests`, `groups`, `limit` (longest response): of the batch. `lengths`: response tokens of some
    of its groups, ordered by the length of their longest response, shortest first. `prompt_tokens`: the mean.
    `path`: see `CriticalPath`. `carried_prem`: preemptible instances that their shared devices can run side
    by side; 0: no bound. `counted`: groups of a race that count, of `counted_samples` each; 0: all groups do.
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
    path: CriticalPath | None = None
    carried_prem: int = 0
    counted: int = 0
    counted_samples: int = 0


class RolloutStatus(Message, frozen=True):
    """Asks for the figures of the live view."""


class RolloutFigures(Message, frozen=True):
    """Requests by state, serving instances by kind, engines of all reserved instances, and sums since the job
    started. tokens_wasted: by cause (`gleaner.actors.rollout.state.events.Counters`). busy_preemptible:
    preemptible instances that have requests. weights_pulled: how instances received versions since the
    manager's start: versions and bytes as deltas (`delta_`) and as images (`whole_`), and `image_bytes`, the
    size if all had been images. newest: the version that instances should serve; None before the first.
    verdicts: by status.
    asked_again: verdicts of a failing verifier that were requested again, so that no sample has them, since
    the manager's start. failure: the text of the last verdict that does not judge its response. sick: the
    verifier, None while it is healthy.
    """

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
    weights_pulled: dict[str, int] = {}
    newest: int | None = None
    verdicts: dict[str, int] = {}
    asked_again: dict[str, int] = {}
    failure: str = ""
    sick: Sickness | None = None


class RequestLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one request: its token count, the CRC-32 of its tokens (u32, raw), its spans, and its
    score (None if it has none). dropped: why it did not count, "" if it did."""

    request: str
    count: int
    crc: int
    spans: tuple[Span, ...]
    score: float | None
    status: str
    dropped: str = ""


class BatchLedger(Message, frozen=True):
    """Journaled at release: the audit trail of a batch. min_version: see `BatchSubmitted`."""

    batch: str
    version: int
    requests: tuple[RequestLedger, ...]
    min_version: int | None = None
