"""Rollout events: RolloutManager journal, and the snapshot that bounds replay.

Owns the shapes only; `state` has their effects.

A *batch* is what is rolled out together under one weights version: the prompts of one step, or of one
evaluation; it has a name (`"step-7"`, `"eval-first"`). A *ticket* is the number that the manager gives to one
dispatch of a request to an instance; it is never used again within an incarnation of that instance.
"""

import msgspec

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt, Span
from gleaner.supervisor import Message


class VersionPublished(Message, frozen=True):
    """This version is the trainer's newest now; higher ones that were published before are lost.

    `root`: the digest of its manifest. `sources`: TransferAgents that have it.
    """

    version: int
    root: bytes
    sources: tuple[str, ...]


class VersionFailed(Message, frozen=True):
    """Instances could not load this version, and `why`. Nothing is made under it, and it is never published
    again with the same root."""

    version: int
    root: bytes
    why: str


class InstanceJoined(Message, frozen=True):
    """An incarnation of an instance opened its stream. It fences the earlier ones of the same name."""

    instance: str
    incarnation: int


class InstanceGone(Message, frozen=True):
    """An incarnation died, left, or was given up: its requests continue elsewhere from their last token. With
    `anew` (for comparison) they start again, and their tokens are wasted."""

    instance: str
    incarnation: int
    cause: str
    anew: bool = False


class Dispatched(Message, frozen=True):
    """Requests were given to an instance that serves `version`; one ticket for each request. `moved` of them
    were taken from another instance to balance load."""

    instance: str
    incarnation: int
    version: int
    tickets: tuple[int, ...]
    requests: tuple[str, ...]
    moved: int = 0


class TicketsRevoked(Message, frozen=True):
    """Dispatches taken back (refused by the worker, moved away); their requests are queued again."""

    instance: str
    incarnation: int
    tickets: tuple[int, ...]


class TicketsRenewed(Message, frozen=True):
    """A paused instance continues these dispatches under other weights. `version`: of those weights; they
    made the tokens that it sends from now on."""

    instance: str
    incarnation: int
    version: int
    tickets: tuple[int, ...]


class FrameLogged(Message, frozen=True):
    """`frames` frames of an instance's token stream, joined row by row; `seq` is the number of the last one.

    Columns of equal length, little-endian: `tickets` u32, `tokens` u32, `logprobs` f32, `flags` u8.
    `version`: the weights version under which they were decoded, if the wire carries it; otherwise the
    version of the dispatch applies.
    """

    instance: str
    incarnation: int
    seq: int
    tickets: bytes
    tokens: bytes
    logprobs: bytes
    flags: bytes
    version: int | None = None
    frames: int = 1


class Scored(Message, frozen=True):
    """The verdict of a finished request. The first one counts. score: None if the status is a failure of our
    own (`gleaner.actors.reward.verdicts`): the sample is unscored, and no step trains on it. detail: what
    failed then."""

    request: str
    score: float | None
    status: str = "ok"
    detail: str = ""


class GroupsClosed(Message, frozen=True):
    """These groups of a race have all of their samples: for each group the numbers of the samples that count.
    The other samples do not, and their running requests are aborted."""

    batch: str
    groups: tuple[int, ...]
    samples: tuple[tuple[int, ...], ...]


class GroupsKept(Message, frozen=True):
    """These groups count, in a batch that does not keep all of its groups. They are complete, or, in a race,
    closed: their verdicts may be missing."""

    batch: str
    groups: tuple[int, ...]


class GroupsDropped(Message, frozen=True):
    """These groups do not count; `why` is a reason of `gleaner.actors.rollout.state.group_policy`. Their
    running requests are aborted."""

    batch: str
    groups: tuple[int, ...]
    why: str


class GroupsAdded(Message, frozen=True):
    """More prompts, from group `first` on: drawn in place of dropped ones."""

    batch: str
    first: int
    prompts: tuple[Prompt, ...]


class SampleAgain(Message, frozen=True):
    """A finished sample has no verdict of its own (`why`, a status, and `detail`): it is generated again,
    from its prompt, as another request."""

    request: str
    why: str
    detail: str = ""


class RequestsDue(Message, frozen=True):
    """The deadline of these requests has passed: each ends with its tokens so far once no instance decodes
    it."""

    requests: tuple[str, ...]


class GroupsTaken(Message, frozen=True):
    """Complete groups went to the trainer's incarnation `taker`. A newer taker starts the batch from its
    beginning."""

    batch: str
    taker: int
    groups: tuple[int, ...]


class BatchReleased(Message, frozen=True):
    """The batch is trained and durable, or given up: forget it."""

    batch: str


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A `request_log.RequestLog` at rest, without what its batch has. Tokens u32, log-probs f32, raw.

    again: how often its sample had been generated before. dropped: why it does not count, "" if it does;
    ended: it was finished before.
    let_go: number and CRC-32 of its tokens, if they are held no longer. due: its deadline has passed. cut:
    its engine ended it at a limit.
    """

    group: int
    sample: int
    state: str
    attempts: int
    tokens: bytes
    logprobs: bytes
    spans: tuple[Span, ...]
    score: float | None
    status: str
    again: int = 0
    dropped: str = ""
    let_go: tuple[int, int] | None = None
    due: bool = False
    cut: bool = False
    ended: bool = False


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An open batch at rest. dropped: group and why. closed: groups of a race with the samples that count.
    Samples that were generated again precede the others, those that do not count in a closed group follow."""

    submitted: BatchSubmitted
    taker: int
    taken: tuple[int, ...]
    requests: tuple[RequestRecord, ...]
    kept: tuple[int, ...] = ()
    dropped: tuple[tuple[int, str], ...] = ()
    added: tuple[Prompt, ...] = ()
    closed: tuple[tuple[int, tuple[int, ...]], ...] = ()


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """One dispatch of a request. `version`: of the weights that the instance served then; None in journals of
    older programs, where the version of the batch applies. `started`: decoding began. `superseded`: taken
    back, rows are dropped."""

    request: str
    attempt: int
    version: int | None = None
    started: bool = False
    superseded: bool = False


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The token stream of an instance at rest. Tickets in ascending order."""

    instance: str
    incarnation: int
    last_seq: int
    next_ticket: int
    gone: bool
    tickets: tuple[tuple[int, Ticket], ...]


class Counters(msgspec.Struct, kw_only=True):
    """Sums since the job started; they outlive batches, instances and restarts.

    tokens_wasted: by cause, of tokens that no step is trained on. "aborted": their group was surplus, or
    their sample in a closed group, or they still arrived after an abort; "dropped": their group was uniform;
    "lost": their sample was generated again; "stale": made under weights that are too old. verdicts: by
    status, also of samples that were generated again. failure: the text of the last verdict that was a
    failure of our own.
    """

    tokens_collected: int = 0
    tokens_released: int = 0
    tokens_generated_twice: int = 0
    requests_finished: int = 0
    requests_migrated: int = 0
    requests_moved: int = 0
    groups_taken: int = 0
    groups_dropped: int = 0
    groups_aborted: int = 0
    samples_again: int = 0
    frames: int = 0
    tokens_wasted: dict[str, int] = {}
    verdicts: dict[str, int] = {}
    failure: str = ""

    def judge(self, status: str, detail: str) -> None:
        """Count a verdict."""
        self.verdicts[status] = self.verdicts.get(status, 0) + 1
        self.failure = detail or self.failure

    def waste(self, cause: str, tokens: int) -> None:
        """Count these tokens as wasted."""
        if tokens:
            self.tokens_wasted[cause] = self.tokens_wasted.get(cause, 0) + tokens

    def copy(self) -> "Counters":
        """The same sums, in a value of its own."""
        return msgspec.structs.replace(
            self, tokens_wasted=dict(self.tokens_wasted), verdicts=dict(self.verdicts)
        )


class RolloutSnapshot(Message, frozen=True):
    """All open state and the sums: `RolloutState` at one moment."""

    batches: tuple[BatchRecord, ...]
    streams: tuple[StreamRecord, ...]
    counters: Counters
    refused: dict[str, int]
    versions: tuple[VersionPublished, ...] = ()
    lost_versions: tuple[VersionPublished, ...] = ()
    failed_versions: tuple[VersionFailed, ...] = ()
