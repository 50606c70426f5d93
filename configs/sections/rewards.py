"""Settings of the scorers of answers: workers, sandbox, services, limits and plans."""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from gleaner.configs.sections.judge import Judge
from gleaner.configs.sections.values import (
    URL,
    VARIABLE,
    Count,
    NotNegative,
    Positive,
    Section,
    SettingsFolder,
)

SERVICE = r"^(cluster|https?://[^/\s@]+)?\Z"
"""A reward service, or nothing."""
JOB_NAME = r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?\Z"
"""Name of a job, or nothing."""


class Sandbox(Section, frozen=True, kw_only=True):
    """Isolation of the programs that score model output."""

    isolation: Literal["auto", "namespaces", "landlock"] = "auto"
    """How programs are isolated from the host: namespaces (bubblewrap), landlock (where a host allows no user
    namespaces), auto: the first that works. If none works nothing is scored (docs/sandbox.md)."""


class Function(Section, frozen=True, kw_only=True):
    """A function of your own that scores responses: verifier `python` (docs/functions.md)."""

    call: Annotated[str, Meta(pattern=r"^([A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_][\w.]*)?\Z")] = ""
    """`module:function`, for example `my_rewards:score`; the module is in `path` or is installed."""
    path: SettingsFolder = ""
    """Folder to import from; if missing, that of the settings file."""
    style: Literal["auto", "own", "verl", "trl", "trl-chat", "slime"] = "auto"
    """Calling convention: ours, or that of verl, TRL or slime; `auto` reads the names of its parameters.
    `trl-chat`: with messages as completions, whatever the prompt is."""
    reads: list[str] = []
    """Files and folders, relative to `path`, that it reads in the sandbox beside its own modules."""
    runs_responses: bool = False
    """It evaluates or runs what responses hold: each has a process of its own, and how that ends is the
    response's doing. Else responses share a process, which is far faster."""
    trusted: bool = False
    """It runs outside of the sandbox, in the reward worker, with the job's rights, environment and network:
    for functions that call a service. It must never evaluate the content of a response."""
    deadline_s: Positive = 2.0
    """Processor time for one response; more has the status timeout. With `trusted`: time on the clock of an
    async function; a longer one failed."""


class Http(Section, frozen=True, kw_only=True):
    """A service that scores responses: verifier `http` (docs/functions.md)."""

    url: Annotated[str, Meta(pattern=URL)] = ""
    """URL to which responses are posted; with `style = "roll"` the part before `/v1/submit_task`. It contains
    no user and password: `headers_env`."""
    style: Literal["own", "slime", "openrlhf", "roll"] = "own"
    """Format of request and answer: ours (`prompt`, `messages`, `response`, `answer`, `info`, to a number or
    an object with `score`), or that of services for slime, OpenRLHF or ROLL."""
    deadline_s: Positive = 30.0
    """Time for one response, on the clock, with all tries; then its status is `unavailable`."""
    max_concurrent: Annotated[int, Meta(ge=1, le=1024)] = 16
    """Calls of one reward worker at a time."""
    headers_env: Annotated[str, Meta(pattern=VARIABLE)] = ""
    """Name of a variable in the environment of the job's head that holds the value of the header
    `Authorization`; "" = none is sent."""
    job: Annotated[str, Meta(pattern=JOB_NAME)] = ""
    """Name of this job for a reward service that several share (`rlctl reward serve`), in the header
    `X-Gleaner-Job`; "" = none is sent."""


class Planner(Section, frozen=True, kw_only=True):
    """How many reward workers there are while a job runs."""

    kind: Literal[
        "static",
        "distrs",
        "distrs-strict",
        "history",
        "zero-queue",
        "static-peak",
        "static-mean",
        "hpa",
        "reactive",
    ] = "static"
    """static: as many as the settings name. The others start and end workers: `distrs` plans the fewest that
    do not delay a training step (docs/rewards.md has all of them)."""
    max_delay_s: Positive = 5.0
    """Delay of a training step that a plan tolerates; never more than 1 % of the batch's duration."""
    min_workers: Annotated[int, Meta(ge=0, le=4096)] = 1
    """Workers that there are at least, of all hosts together. The head's host always keeps one: it gives the
    problems."""
    max_workers: Annotated[int, Meta(ge=0, le=65536)] = 0
    """Workers that a plan may have at most; 0: as many as the hosts can have."""
    history_batches: Annotated[int, Meta(ge=1, le=16)] = 1
    """Completed batches of a kind from which the next one is foreseen. DistRS has the last one; more are
    steadier where batches differ by chance, and later to follow where they change."""
    hint_expires_s: NotNegative = 0.0
    """After the announcement of a batch of which no response has come, plans do not count on it any more: its
    job may have ended. 0: twice as long as the last batch of its kind took, at least a minute; never without
    one."""

    def __post_init__(self) -> None:
        if self.history_batches > 1 and self.kind in ("static-peak", "static-mean"):
            raise ValueError(
                f"history_batches: expected 1 with {self.kind}, whose number is that of one batch of each "
                f"kind, got {self.history_batches}"
            )


_OURS = "no setting: it is a failure of the verifier, its sandbox or its host, and never scores"


class Scores(Section, frozen=True, kw_only=True):
    """Score of a response by its status, where that is not `ok` (docs/sandbox.md). Any finite number, for
    example `compile_failed = -0.5`. The verifier's failures have no score, so they are refused here."""

    no_settings: ClassVar[Mapping[str, str]] = {
        "ok": "no setting: it has the score of its verifier",
        **dict.fromkeys(("lost", "overloaded", "unavailable", "sandbox_failed", "verifier_failed"), _OURS),
    }

    no_answer: float = 0.0
    """The response contains no answer that the verifier can read."""
    compile_failed: float = 0.0
    """Its program is refused by the compiler."""
    timeout: float = 0.0
    """Its program, or its compilation, takes more than its time."""
    memory: float = 0.0
    """It takes more than its memory."""
    output: float = 0.0
    """It writes more than its limit."""
    crashed: float = 0.0
    """It ends by an exception, an exit code or a signal."""
    forbidden: float = 0.0
    """It makes a system call that ends a program."""

    @property
    def given(self) -> dict[str, float]:
        """The scores that are not 0, by status."""
        return {name: score for name in self.__struct_fields__ if (score := getattr(self, name))}


class Timeouts(Section, frozen=True, kw_only=True):
    """Time limits of programs that adapt to each test (docs/rewards.md#adaptive-timeouts)."""

    adaptive: bool = False
    """Whether a test of a program (verifier `code`) is ended at `factor` times the longest processor time
    that it took in a right response so far. Off, because a right response that is far slower than the others
    then scores 0; whether that matters is to be measured for a job first."""
    factor: Annotated[float, Meta(ge=1)] = 1.5
    """Limit of a test over the longest time in a right response."""
    min_s: Positive = 2.0
    """Least limit of a test, processor time."""
    max_s: Positive = 30.0
    """Most, and that of a test that no response has passed yet. `reward.deadline_s` is of all tests of a
    program, so it must not be less."""
    audit_share: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """Share of the programs that were cut which run once more, up to `max_s`, after their verdict: the counts
    show how many of them were right."""

    def __post_init__(self) -> None:
        if self.min_s > self.max_s:
            raise ValueError(f"min_s: expected at most max_s ({self.max_s:g}), got {self.min_s:g}")


class Jobs(Section, frozen=True, kw_only=True):
    """Jobs that share a reward service (`rlctl reward serve`, docs/rewards.md#many-jobs). A client names its
    job in the header X-Gleaner-Job; without it each API key is a job."""

    max_queued: Annotated[int, Meta(ge=0, le=2**16)] = 0
    """Items of one job that may wait; more are answered 429. 0: as many as `reward.max_queue`."""
    max_workers: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Workers of a stage that may have items of one job at a time; no more are planned for it. 0: all."""
    weights: dict[str, Positive] = {}
    """Weight of a job in the shares of the workers, by its name; 1 for the others. A job with waiting items
    has at least its share."""
    guaranteed: dict[str, Annotated[int, Meta(ge=1, le=4096)]] = {}
    """Workers of each stage that a job has at least, by its name, as far as it has items for them; 0 for the
    others. It gets them as workers get free, before shares count; others use them meanwhile."""
    losses: Annotated[int, Meta(ge=0, le=1000)] = 16
    """Items of one job that may be lost with their workers within `losses_within_s` (each ended the workers
    of all its `reward.attempts`); then the job is refused with 503 for `sick_s`, and the others keep their
    workers. 0: any number."""
    losses_within_s: Positive = 60.0
    """Time in which lost items of a job count together."""
    sick_s: Positive = 60.0
    """For how long such a job is refused."""

    def __post_init__(self) -> None:
        for name, workers in self.guaranteed.items():
            if self.max_workers and workers > self.max_workers:
                raise ValueError(
                    f"guaranteed.{name}: expected at most max_workers ({self.max_workers}), which no job "
                    f"exceeds, got {workers}"
                )


class Share(Section, frozen=True, kw_only=True, rename={"with_": "with"}):
    """A reward service that scores this job's responses, beside those of other jobs
    (docs/rewards.md#many-jobs). Each response is a call; one worker process makes texts of tokens.
    Verifiers, sandboxes and judges are the service's, whose settings have the same tasks."""

    with_: Annotated[str, Meta(pattern=SERVICE)] = ""
    """`cluster`: the service that runs on the host where the job is started, or that the variable
    GLEANER_REWARD_SERVICE names; or its URL, `http://HOST:8900`. "" = none: the job scores by itself."""
    job: Annotated[str, Meta(pattern=JOB_NAME)] = ""
    """Name of this job there; "" = `job.name`."""
    key_env: Annotated[str, Meta(pattern=VARIABLE)] = ""
    """Name of a variable in the environment of the job's head that holds an API key of the service."""
    deadline_s: Positive = 600.0
    """Time for one verdict, on the clock, with the waits in the service's queue; then it is asked for again.
    """
    max_calls: Annotated[int, Meta(ge=1, le=4096)] = 256
    """Calls under way at most, each a connection, for the head's host and for each reward host. How many of
    them there are follows the queues of the service: each call that it refuses (429) lowers the number by
    one, each verdict raises it by one."""


class StageWorkers(Section, frozen=True, kw_only=True):
    """The workers of one stage."""

    workers: Annotated[int, Meta(ge=0, le=4096)] = 1
    """Worker processes of the head's host; 0: only reward hosts have them."""
    host_workers: Annotated[int, Meta(ge=0, le=4096)] = 1
    """Worker processes of each reward host; 0: only the head's host has them."""
    cost: Positive = 1.0
    """Of one worker for one second, in any unit that all stages share; plans save workers of the dearest
    stage first."""


class Stages(Section, frozen=True, kw_only=True):
    """Stages of one item, one after the other (docs/rewards.md#stages): a program of a compiled language is
    compiled, then run; a judge beside a verifier scores what has passed. `reward.workers` and
    `reward.host_workers` are not used then."""

    separate: bool = False
    """Whether each stage has workers and hosts of its own. Otherwise one worker does all of an item."""
    score: StageWorkers = StageWorkers()
    """Of verifiers that are not divided."""
    compile: StageWorkers = StageWorkers()
    """Compilation of programs (verifier `code` with a compiled language)."""
    run: StageWorkers = StageWorkers()
    """Runs of compiled programs with the inputs of their tests."""
    judge: StageWorkers = StageWorkers()
    """The judge beside a verifier (`[task.judge]`)."""


class Reward(Section, frozen=True, kw_only=True):
    """Scoring of answers."""

    workers: Count = 1
    """Worker processes of the head's host; rule-based scores take microseconds, so a second one idles."""
    host_workers: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Worker processes of each reward host (`nodeagent start --role reward`); 0: one a core."""
    deadline_s: Positive = 2.0
    """Processor time of the scores that are made together, in the sandbox. A score that takes longer alone
    has the status timeout and its score. On the clock it may take twice as long, waits for a processor not
    counted."""
    attempts: Count = 2
    """Tries of one score where its worker, its sandbox or its verifier failed; then the sample has no verdict
    of its own and is made again (`rollout.sample_retries`)."""
    max_queue: Annotated[int, Meta(ge=1, le=2**16)] = 1024
    """Scores that may wait for a worker, and so the verdicts that a job requests at a time; each takes the
    memory of its response, tens of bytes a token."""
    aging_s: Positive = 60.0
    """Waiting items leave by the batch that is complete first. One that reached the service longer ago than
    this counts as if its batch were complete earlier by the excess, so that no job starves."""
    sick_share: Annotated[float, Meta(ge=0, le=1)] = 0.2
    """Share of the last 200 verdicts above which failures of the verifier, its sandbox or its workers stop
    the job from handing out groups (with fewer than 20 verdicts: all of them). 1: never."""
    sick_s: NotNegative = 30.0
    """A job waits so long for such a verifier to recover, and at least as long as one verdict may take by the
    limits above; then it fails with the verifier's own text. Pending verdicts are requested again meanwhile.
    """
    journal_above_s: NotNegative = 1.0
    """A verdict that took a worker so long is in the proxy's journal, until its batch is over: a proxy that
    restarts does not compute it again."""
    sandbox: Sandbox = Sandbox()
    scores: Scores = Scores()
    function: Function = Function()
    http: Http = Http()
    planner: Planner = Planner()
    judge: Judge = Judge()
    timeouts: Timeouts = Timeouts()
    jobs: Jobs = Jobs()
    stages: Stages = Stages()
    share: Share = Share()

    @property
    def worker_s(self) -> float:
        """Time limit of a worker for one task; then it is killed, and the attempt counts as failed. Its
        sandbox ends programs long before."""
        return self.own_s + self.judge_s

    @property
    def own_s(self) -> float:
        """The same for the verifier alone, where a judge beside it has workers of its own."""
        if self.share.with_:
            return 2 * self.share.deadline_s
        http_s = self.http.deadline_s if self.http.url else 0.0
        return 4 * max(self.deadline_s, self.function.deadline_s, http_s)

    @property
    def problem_s(self) -> float:
        """The same for a problem, and for a text that a service scores: neither a service nor a judge has a
        part in them."""
        return 4 * max(self.deadline_s, self.function.deadline_s)

    @property
    def judge_s(self) -> float:
        """The same for a judge; 0 without one, and where a service has it."""
        return 4 * self.judge.deadline_s if self.judge.used and not self.share.with_ else 0.0

    @property
    def verdict_s(self) -> float:
        """Longest time of a verdict, whatever happens to the workers: one try with others, then each attempt
        alone."""
        return self.worker_s * (self.attempts + 1)

    @property
    def sick_limit_s(self) -> float:
        """Longest time that the verifier may be sick: a verdict requested then must have arrived."""
        return max(self.sick_s, self.verdict_s)

    def __post_init__(self) -> None:
        if self.timeouts.adaptive and self.timeouts.max_s > self.deadline_s:
            raise ValueError(
                f"timeouts.max_s: expected at most reward.deadline_s ({self.deadline_s:g}), which is of all "
                f"tests of a program, got {self.timeouts.max_s:g}: raise deadline_s"
            )
        if self.share.with_ and self.stages.separate:
            raise ValueError(
                "stages.separate: expected false where share.with names a service: its settings divide the "
                "work, got true"
            )
        if self.share.with_ and self.timeouts.adaptive:
            raise ValueError(
                "timeouts.adaptive: expected false where reward.share.with names a service, which gets no "
                "limits of this job, got true"
            )
        if self.judge.used and not self.share.with_:
            self._check_parts(self.judge, self.judge.workers or self.workers)

    @staticmethod
    def _check_parts(judge: Judge, workers: int) -> None:
        """Each worker's part of the limits is enough for a response. Raises ValueError."""
        if judge.max_concurrent < workers:
            raise ValueError(
                f"judge.max_concurrent: expected at least 1 for each of {workers} workers, got "
                f"{judge.max_concurrent}: raise it, or lower reward.workers or judge.workers"
            )
        needed = math.ceil(60 * judge.votes * workers / judge.deadline_s)
        if 0 < judge.requests_per_minute < needed:
            raise ValueError(
                f"judge.requests_per_minute: expected 0 or at least {needed}, with which each of {workers} "
                f"workers gets its {judge.votes} votes within judge.deadline_s ({judge.deadline_s:g}), got "
                f"{judge.requests_per_minute}: raise judge.deadline_s, or lower the workers"
            )
