"""What happens to rollout: the events that RolloutManager journals, and the snapshot that bounds replay.

Owns the shapes only. What an event does to the state is in `state`.

A *batch* is what is rolled out together under one weights version: the prompts of one step, or of one
evaluation; it has a name (`"step-7"`, `"eval-first"`). A *ticket* is the number that the manager gives to one
dispatch of a request to an instance; it is never used again within an incarnation of that instance.
"""

import msgspec

from supervisor import Message


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One group of a batch: a problem of the task, and a seed for each of its G samples."""

    split: str
    index: int
    tokens: tuple[int, ...]
    seeds: tuple[int, ...]


class BatchSubmitted(Message, frozen=True):
    """The prompts of a batch, in the order of their groups; every token must be made under `version`."""

    batch: str
    version: int
    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    temperature: float = 1.0


class InstanceJoined(Message, frozen=True):
    """An incarnation of an instance opened its stream. It fences the earlier ones of the same name."""

    instance: str
    incarnation: int


class InstanceGone(Message, frozen=True):
    """An incarnation died, left, or was given up: its requests continue elsewhere from their last token."""

    instance: str
    incarnation: int
    cause: str


class Dispatched(Message, frozen=True):
    """Requests were given to an instance that serves `version`; one ticket for each request."""

    instance: str
    incarnation: int
    version: int
    tickets: tuple[int, ...]
    requests: tuple[str, ...]


class TicketsRevoked(Message, frozen=True):
    """Dispatches taken back (refused by the worker, moved away); their requests wait again."""

    instance: str
    incarnation: int
    tickets: tuple[int, ...]


class FrameLogged(Message, frozen=True):
    """One frame of an instance's token stream: columns of equal length, little-endian.

    `tickets` u32, `tokens` u32, `logprobs` f32, `flags` u8. `version` is the weights version under which the
    frame was decoded where the wire tells it; where it does not, that of the dispatch stands.
    """

    instance: str
    incarnation: int
    seq: int
    tickets: bytes
    tokens: bytes
    logprobs: bytes
    flags: bytes
    version: int | None = None


class Scored(Message, frozen=True):
    """The verdict of a finished request. The first one counts."""

    request: str
    score: float
    status: str = "ok"


class GroupsTaken(Message, frozen=True):
    """Complete groups went to the trainer's incarnation `taker`. A newer taker starts the batch anew."""

    batch: str
    taker: int
    groups: tuple[int, ...]


class BatchReleased(Message, frozen=True):
    """The batch is trained and durable, or given up: forget it."""

    batch: str


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """`count` tokens of a request from position `start` on, made by one attempt under one version."""

    attempt: int
    instance: str
    incarnation: int
    version: int
    start: int
    count: int


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A `token_log.RequestLog` at rest, less what its batch tells. Tokens u32, log-probs f32, raw."""

    group: int
    sample: int
    state: str
    attempts: int
    tokens: bytes
    logprobs: bytes
    spans: tuple[Span, ...]
    score: float | None
    status: str


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An open batch at rest."""

    submitted: BatchSubmitted
    taker: int
    taken: tuple[int, ...]
    requests: tuple[RequestRecord, ...]


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """One dispatch of a request. `started`: decoding began. `superseded`: taken back, rows are dropped."""

    request: str
    attempt: int
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
    """Sums since the job began; they outlive batches, instances and restarts."""

    tokens_collected: int = 0
    tokens_released: int = 0
    tokens_generated_twice: int = 0
    requests_finished: int = 0
    requests_migrated: int = 0
    groups_taken: int = 0
    frames: int = 0


class RolloutSnapshot(Message, frozen=True):
    """Everything open, and the sums: what `RolloutState` is at one moment."""

    batches: tuple[BatchRecord, ...]
    streams: tuple[StreamRecord, ...]
    counters: Counters
    refused: dict[str, int]
