"""Messages to the RewardProxy, and between it and the hosts that score for it."""

import msgspec

from gleaner.supervisor import Address, Message

JOB_HEADER = "X-Gleaner-Job"
"""HTTP header in which a client of a reward service names its job."""
BATCH_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z"
"""Pattern of the name of a batch, at a reward service that several jobs share: that of a run's id."""


class GetProblems(Message, frozen=True):
    """The prompts of these problems of a split ("train" or "heldout")."""

    split: str
    indices: list[int]


class Problems(Message, frozen=True):
    """Prompt tokens in the order of the indices."""

    prompts: list[list[int]]


class Score(Message, frozen=True):
    """Score the response `tokens` (u32, raw, little-endian) to a problem. Keyed by the request. batch: of the
    request; a training step waits for all of its verdicts."""

    request: str
    split: str
    index: int
    tokens: bytes
    batch: str


class ScoreText(Message, frozen=True):
    """Score the text `response` to a problem that comes with it. Keyed by the request. task: one of the
    settings; entry: the problem, JSON of `gleaner.actors.reward.entries.Entry`. job: of several that share
    the service."""

    request: str
    task: str
    entry: bytes
    response: str
    batch: str
    job: str = ""


class RunCode(Message, frozen=True):
    """Run a program in the sandbox of a worker of the proxy's own host, and give its output; no score. Keyed
    by the request. language: as in `gleaner.actors.reward.verifiers.code_runs`. run_s, compile_s: processor
    seconds."""

    request: str
    language: str
    code: str
    stdin: str
    run_s: float
    compile_s: float


class CommandRun(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a program or a compiler. status: Finished, Error or TimeLimitExceeded, as SandboxFusion has
    it; execution_time: seconds. return_code: None where it was killed. Output is cut."""

    status: str
    execution_time: float
    return_code: int | None = None
    stdout: str = ""
    stderr: str = ""


class CodeRan(Message, frozen=True):
    """What a program did; None: it was not run, since it could not be compiled. compiled: None for a language
    without a compiler."""

    request: str
    ran: CommandRun | None
    compiled: CommandRun | None = None


class Verdict(Message, frozen=True):
    """The reward of a response. `status`: see `gleaner.actors.reward.verdicts`; score: None if it is one of
    ours, that of `[reward.scores]` (0 by default) if it is any other but ok."""

    request: str
    score: float | None
    status: str
    detail: str = ""


class RewardHint(Message, frozen=True):
    """The rollout of a batch begins: about so many responses will be scored. A repetition changes nothing.
    kind: of its round, where those of one kind are alike and others are not: "short", whose longest responses
    are aborted, "long", whose responses all are long; "" for any other."""

    batch: str
    items: int
    kind: str = ""


class CancelScores(Message, frozen=True):
    """The verdicts of these requests are not needed: their groups were dropped."""

    requests: list[str]


class BatchEnded(Message, frozen=True):
    """The step has all the verdicts that it waits for."""

    batch: str


class OfferWorkers(Message, frozen=True):
    """A host offers its reward workers: of each stage so many. running: the attempts of the items that
    it has, or whose results it could not send yet; stages: the stages of these, where items have several.
    Answered by `WorkersTaken`."""

    host: str
    actor: Address
    workers: dict[str, int]
    running: dict[str, int]
    stages: dict[str, str] = {}


class WorkersTaken(Message, frozen=True):
    """The proxy gives this host items from now on, under this epoch."""

    proxy: Address
    epoch: str


class StillOffered(Message, frozen=True):
    """Whether the proxy still has this host's offer. Refused if not."""

    host: str
    epoch: str


class ItemToScore(msgspec.Struct, frozen=True, kw_only=True):
    """One item, of one stage; work: a packed item of `gleaner.actors.reward.pipe`. attempt: grows with each
    stage and with each failure. The same item with the same attempt was sent twice. carried: what the stage
    before left (`gleaner.actors.reward.carried`); made_on: the actor that has its blob."""

    id: str
    attempt: int
    stage: str
    work: bytes
    carried: bytes = b""
    made_on: str = ""


class ScoreItems(Message, frozen=True):
    """Score these; results come by `ItemsScored`. Refused under an older epoch."""

    epoch: str
    items: list[ItemToScore]


class CancelItems(Message, frozen=True):
    """The results of these items are not needed. attempts: of those that may be given again, the number up to
    which it holds: the message that gives them again may arrive before this one."""

    epoch: str
    items: list[str]
    attempts: dict[str, int] = {}


class ResizeWorkers(Message, frozen=True):
    """Have so many workers of each stage. Refused under an older epoch."""

    epoch: str
    workers: dict[str, int]


class ItemResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an item in one stage, and the seconds that a worker took for it. attempt: as it was sent.
    right_s, cut: what the tests of a program took that had limits of their own
    (`gleaner.actors.reward.case_limits`). carried: with the status `passed`, what the next stage needs."""

    id: str
    attempt: int
    stage: str
    score: float | None
    status: str
    detail: str = ""
    took_s: float = 0.0
    right_s: tuple[float, ...] = ()
    cut: bool = False
    carried: bytes = b""


class ItemsScored(Message, frozen=True):
    """Results of a host; it repeats them until they are received."""

    host: str
    epoch: str
    results: list[ItemResult]


class ReadBlob(Message, frozen=True):
    """The part of a blob that begins at this offset (bytes). digest: of all its bytes. Refused where it is
    not here; answered by `BlobPart`."""

    digest: str
    offset: int


class BlobPart(Message, frozen=True):
    """A part of a blob, and the size of all of it."""

    total_bytes: int
    content: bytes


class Sickness(msgspec.Struct, frozen=True, kw_only=True):
    """A verifier that is sick: for how long, after how long the job ends (s), how many of its newest `of`
    verdicts failed, by status, and the text of the last one."""

    for_s: float
    limit_s: float
    of: int
    counts: dict[str, int]
    text: str

    @property
    def over(self) -> bool:
        """Its time to recover is over."""
        return self.for_s >= self.limit_s

    @property
    def words(self) -> str:
        """Counts and text, for display."""
        by_status = ", ".join(f"{status} {count}" for status, count in self.counts.items())
        found = f"{sum(self.counts.values())} of its last {self.of} verdicts failed ({by_status})"
        return f"{found}: {self.text}" if self.text else found


class RewardStatus(Message, frozen=True):
    """The state of the reward tier; with a `request`, also why that one has no verdict yet. Where several
    jobs share the tier, the name of a job stands for its request that waits longest, else for the one that
    runs longest."""

    request: str = ""


class StageState(msgspec.Struct, frozen=True, kw_only=True):
    """A stage: its workers now, the most there can be, those of the last plan (None: nothing was planned),
    items that wait and run, and the seconds that a worker takes for one (None: unknown)."""

    name: str
    workers: int
    most: int
    planned: int | None
    queued: int
    running: int
    item_s: float | None


class RewardHostState(msgspec.Struct, frozen=True, kw_only=True):
    """A host: workers, items and, if it gets no new ones, why."""

    name: str
    workers: dict[str, int]
    items: int
    barred: list[str]


class RewardBatchState(msgspec.Struct, frozen=True, kw_only=True):
    """An active batch: items expected, arrived and scored; waiting and running ones; seconds since it began;
    seconds from now until it can be complete if nothing queued (None: unknown); seconds by which a plan may
    delay it (None: unknown, or no planner). kind: it is foreseen from the last batches of this kind."""

    name: str
    expected: int
    arrived: int
    scored: int
    queued: int
    running: int
    age_s: float
    complete_in_s: float | None
    tolerated_s: float | None = None
    kind: str = ""


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """A job that shares a service: the weight of its share; items that wait and run; those that were scored,
    with the seconds of workers that these took, by stage; items that ended the workers of all their tries;
    items that were refused; seconds for which it is still refused, since too many were lost so; workers of a
    stage that it is guaranteed."""

    name: str
    weight: float
    queued: int
    running: int
    scored: int
    worker_s: dict[str, float]
    lost: int
    refused: int
    sick_for_s: float
    guaranteed: int = 0


class ItemState(msgspec.Struct, frozen=True, kw_only=True):
    """One request: its state in words, its batch, stage, attempts and host, for how long it has been there,
    and how many items are in front of it. why: it waits, "" where it does not. job: of several that share the
    tier."""

    request: str
    state: str
    batch: str = ""
    stage: str = ""
    host: str = ""
    attempts: int = 0
    for_s: float = 0.0
    ahead: int = 0
    why: str = ""
    job: str = ""


class RewardState(Message, frozen=True):
    """The state of the reward tier."""

    stages: list[StageState]
    hosts: list[RewardHostState]
    batches: list[RewardBatchState]
    item: ItemState | None = None
    jobs: list[JobState] = []
