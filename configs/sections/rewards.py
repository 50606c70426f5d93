"""Settings of the scorers of answers: workers, sandbox, services, judges, limits and plans."""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from gleaner.configs.sections.values import (
    Count,
    HostPath,
    Natural,
    NotNegative,
    Positive,
    Section,
    SettingsFolder,
)

ADDRESS = r"^(\[[0-9a-f:]+\]|[0-9.]+):[1-9][0-9]{0,4}\Z"
"""An address with a port."""
COLOCATED_MODEL = "judge"
"""Name of a judge's model that the job serves by itself, if none is set."""
URL = r"^(https?://[^/\s@]+(/\S*)?)?\Z"
"""A URL without user and password, or nothing."""
SERVICE = r"^(cluster|https?://[^/\s@]+)?\Z"
"""A reward service, or nothing."""
JOB_NAME = r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?\Z"
"""Name of a job, or nothing."""
VARIABLE = r"^([A-Za-z_][A-Za-z0-9_]*)?\Z"
"""Name of a variable of the environment, or nothing."""


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

    kind: Literal["static", "distrs", "distrs-strict", "history", "zero-queue", "hpa", "reactive"] = "static"
    """static: as many as the settings name. The others start and end workers: `distrs` plans the fewest that
    do not delay a training step (docs/rewards.md has all of them)."""
    max_delay_s: Positive = 5.0
    """Delay of a training step that a plan tolerates; never more than 1 % of the batch's duration."""
    min_workers: Annotated[int, Meta(ge=0, le=4096)] = 1
    """Workers that there are at least, of all hosts together. The head's host always keeps one: it gives the
    problems."""
    max_workers: Annotated[int, Meta(ge=0, le=65536)] = 0
    """Workers that a plan may have at most; 0: as many as the hosts can have."""


class Colocated(Section, frozen=True, kw_only=True):
    """A judge that the job serves by itself, with the builtin engine, in a process `judge` beside the engine
    of the reserved host (`reward.judge.place = "colocated"`)."""

    model_path: HostPath = ""
    """Folder of the judge's model on the reserved host, in Hugging Face's form (Qwen3)."""
    reserve_mb: Natural = 0
    """Memory of its device for weights, cache and activations, in MB of 2^20 bytes. Layers that do not fit
    stay in host memory and are streamed, the more the longer the input."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where it computes, in float32."""
    listen: Annotated[str, Meta(pattern=ADDRESS)] = "127.0.0.1:8901"
    """HOST:PORT where it serves and reward workers call it. Beyond loopback it needs `reward.judge.key_env`,
    on the reserved host too."""
    slots: Annotated[int, Meta(ge=1, le=1024)] = 8
    """Calls that it decodes together; others wait."""
    context_tokens: Annotated[int, Meta(ge=2, le=2**20)] = 8192
    """Tokens of a call, prompt and answer together; its cache has room for so many in each slot."""

    @property
    def lacking(self) -> str:
        """The first setting that is needed and not given, with what to do; "" for none."""
        if not self.model_path:
            return "model_path: is empty: set it to the folder of the judge's model"
        if not self.reserve_mb:
            return "reserve_mb: is 0: set it to the memory of the device that the judge may use"
        return ""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of `listen`."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


class Judge(Section, frozen=True, kw_only=True):
    """A language model that scores responses by a rubric: verifier `judge` (docs/tasks.md). `url`,
    `model` and a rubric are needed. Limits are of the whole job: each of `workers` has an equal part."""

    place: Literal["url", "instances", "colocated"] = "url"
    """Where the judge is: `url`, a server that you name; `instances`, engines behind a gateway of this host
    that serves `model` (`rlctl gateway`), which is found when the job is started if `url` is empty. An engine
    that vanishes costs no judgement: another one continues it; `colocated`, a process of the job itself,
    beside its engine on the reserved host."""
    colocated: Colocated = Colocated()
    url: Annotated[str, Meta(pattern=URL)] = ""
    """Base URL of a server with OpenAI's API, such as `http://judge:8000/v1`; `/chat/completions` is added.
    It contains no user and password: `key_env`."""
    replicas: list[Annotated[str, Meta(pattern=URL, min_length=1)]] = []
    """Base URLs of other servers of the same model; a call goes to the one with the fewest open calls, and
    is repeated on another one."""
    model: str = ""
    """Name of the model, as its server has it."""
    rubric: HostPath = ""
    """File with the rubric: what earns which score. It is read on the host of the reward workers."""
    rubric_text: str = ""
    """The rubric itself, instead of a file."""
    scale: tuple[float, float] = (0.0, 10.0)
    """Lowest and highest score of the judge. A response scores its place between them, from 0 to 1."""
    votes: Annotated[int, Meta(ge=1, le=15)] = 1
    """Scores of the judge for one response; their median counts. Each is asked with another seed: set
    `temperature` above 0 too, or most servers repeat the first."""
    temperature: NotNegative = 0.0
    """Sampling temperature of the judge."""
    max_tokens: Annotated[int, Meta(ge=1, le=2**17)] = 1024
    """Longest answer of the judge, its thinking included; a longer one is cut, and has no score."""
    json_schema: bool = False
    """Have the server hold the answer to a JSON schema (`response_format`); servers without it answer 400."""
    max_response_chars: Annotated[int, Meta(ge=1, le=2**20)] = 20_000
    """Characters of a response that the judge reads; of a longer one the middle is left out."""
    deadline_s: Positive = 60.0
    """Time for the score of one response, on the clock, with all votes, tries and waits; then its status is
    `unavailable`."""
    attempts: Annotated[int, Meta(ge=1, le=20)] = 4
    """Calls for one vote, where the server is unavailable or the answer has no score; a hedge is none."""
    hedge_s: NotNegative = 0.0
    """A call that takes so long is made again on a replica, and the first answer counts; 0: never."""
    max_concurrent: Annotated[int, Meta(ge=1, le=4096)] = 64
    """Calls of the job at a time."""
    requests_per_minute: Natural = 0
    """Calls of the job in a minute; 0: no limit."""
    tokens_per_minute: Natural = 0
    """Tokens of the job in a minute, those of prompts and answers; 0: no limit. A call counts as 1 token for
    3 bytes of its prompt, and `max_tokens`, until the server reports the number."""
    workers: Natural = 0
    """Reward workers that share these limits; 0: `reward.workers`. With reward hosts: the most that the job
    has at a time, on all hosts. Each further worker would go beyond the limits by its part."""
    key_env: Annotated[str, Meta(pattern=VARIABLE)] = ""
    """Name of a variable in the environment of the job's head that holds the API key; "": none is sent."""

    @property
    def lacking(self) -> str:
        """The first setting that a judge needs and that is not given, with what to do; "" for none."""
        if not self.url and self.place == "url":
            return "url: is empty: set it to the base URL of the judge's server, http://HOST:PORT/v1"
        if self.place == "colocated" and self.colocated.lacking:
            return f"colocated.{self.colocated.lacking}"
        if not self.served_model:
            return "model: is empty: set it to the model's name, one that GET url/models lists"
        if not self.rubric and not self.rubric_text:
            return "rubric: is empty: set it to a file with what earns which score, or set rubric_text"
        return ""

    @property
    def base_url(self) -> str:
        """Base URL of its server; "" where it has to be found."""
        if self.place == "colocated":
            return f"http://{self.colocated.listen}/v1"
        return self.url

    @property
    def served_model(self) -> str:
        """Name of the model, as its server has it; "" where it is not known."""
        return self.model or (COLOCATED_MODEL if self.place == "colocated" else "")

    @property
    def used(self) -> bool:
        """Whether there is a judge."""
        return bool(self.url) or self.place != "url"

    def _check_colocated(self) -> None:
        """Raises ValueError."""
        if self.url or self.replicas:
            raise ValueError(
                'url, replicas: expected none where place is "colocated": colocated.listen is it'
            )
        host, _ = self.colocated.address
        if not self.key_env and not (host == "::1" or host.startswith("127.")):
            raise ValueError(
                f"key_env: expected a variable where colocated.listen is beyond loopback, got {host}: the "
                "judge answers others that have its key alone"
            )

    def __post_init__(self) -> None:
        if self.place == "colocated":
            self._check_colocated()
        low, high = self.scale
        if not low < high:
            raise ValueError(f"scale: expected a lower number before a higher one, got [{low:g}, {high:g}]")
        if self.rubric and self.rubric_text:
            raise ValueError("rubric_text: expected nothing beside rubric: leave one of the two out")
        if self.hedge_s and not self.replicas:
            raise ValueError("hedge_s: expected 0 without replicas: name servers that may take second calls")
        if self.hedge_s >= self.deadline_s:
            raise ValueError(f"hedge_s: expected less than deadline_s ({self.deadline_s:g})")


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
    losses: Annotated[int, Meta(ge=0, le=1000)] = 16
    """Items of one job that may be lost with their workers within `losses_within_s` (each ended the workers
    of all its `reward.attempts`); then the job is refused with 503 for `sick_s`, and the others keep their
    workers. 0: any number."""
    losses_within_s: Positive = 60.0
    """Time in which lost items of a job count together."""
    sick_s: Positive = 60.0
    """For how long such a job is refused."""


class Share(Section, frozen=True, kw_only=True, rename={"with_": "with"}):
    """A reward service that scores this job's responses, beside those of other jobs
    (docs/rewards.md#many-jobs). Each response is a call, of which 32 for each of `reward.workers` may be
    under way; one worker process makes texts of tokens. Verifiers, sandboxes and judges are the service's,
    whose settings have the same tasks."""

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
