"""Config: every setting of the main job, one frozen struct a section.

Owns the names, types, ranges and defaults; each default is documented. Does not read files
(`gleaner.configs.load`) and does nothing with the values. A range is part of the type, so that a refusal can
name the expected values; rules between two settings are in `__post_init__`. Units are in the names; a name
without a unit is a count, a ratio or a text.
"""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Param = bool | int | float | str | list[bool | int | float | str]

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Decay = Annotated[float, Meta(ge=0, lt=1)]
HostPath = Annotated[str, Meta(extra={"host_path": True})]
"""A path on this host; "" = none. `load` makes it absolute: from a file, relative to that file's folder;
from `--set`, relative to the working directory."""
SettingsFolder = Annotated[str, Meta(extra={"host_path": True, "default": "."})]
"""A path on this host. If it is missing and its section is given: the folder of the file."""


_OWN_ACTOR = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: frozen, by keyword, unknown keys refused."""


class Job(Section, frozen=True, kw_only=True):
    """Identity and length of the run."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}\Z")] = "gleaner"
    """Begins the run's id, which is a folder name: hence the narrow alphabet."""
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    """Root of every draw: problems, initial weights, sampling; runs that share it see the same problems."""
    steps: Count = 24
    """RL steps; the least that shows learning beyond the noise of the held-out set is about 20."""
    eval_every: Natural = 0
    """Steps between two evaluations on the held-out problems; 0 = only before the first step and after the
    last. Each one holds training up for as long as `task.heldout_problems` responses take."""
    exact: bool = False
    """Final weights bit-identical to those of any other run of these settings, whatever dies on the way:
    fixed shapes in the engine, micro-batches in the order of the prompts. Needs `threads = 1` in `engine` and
    `training`, and the same processor and libraries on every host; decodes more slowly."""
    actors: list[str] = []
    """Actors of your own, each as `module:Class`, that the head runs beside the job in a process of their own
    (docs/actors.md); they are found as `own/Class`."""

    def __post_init__(self) -> None:
        for place in self.actors:
            if not _OWN_ACTOR.fullmatch(place):
                raise ValueError(f"actors: expected module:Class, got {place!r}")
        names = [place.partition(":")[2] for place in self.actors]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"actors: {name} is there twice; they are found by the names of their classes"
                )


class WarmStart(Section, frozen=True, kw_only=True):
    """Supervised phase that gives a made model something for RL to improve; on problems of its own."""

    steps: Natural = 300
    """Optimizer steps; 0 leaves the model random, and RL then sees no reward to follow."""
    batch: Count = 32
    """Problems an optimizer step."""
    learning_rate: Positive = 4e-3
    """Peak rate of AdamW; high because the model is tiny."""


class Model(Section, frozen=True, kw_only=True):
    """The policy that is trained: a checkpoint directory, or the dimensions of one to make."""

    path: HostPath = ""
    """Hugging Face checkpoint directory (Qwen3 architecture); "" = make one from the dimensions below."""
    hidden_size: Annotated[int, Meta(ge=8)] = 96
    """Width of the residual stream; 96 trains in half a second a step on one CPU core."""
    layers: Count = 2
    """Decoder layers."""
    heads: Count = 3
    """Query heads."""
    kv_heads: Count = 3
    """Key/value heads; must divide `heads`. As many as those: so small a cache need not be shared."""
    head_dim: Annotated[int, Meta(ge=2, multiple_of=2)] = 32
    """Width of a head; even, for rotary embedding."""
    intermediate_size: Count = 192
    """Width of the gated MLP; twice the hidden size was enough for the tasks tried."""
    warm_start: WarmStart = WarmStart()

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: expected a divisor of heads ({self.heads}), got {self.kv_heads}")


TRAIN_PROBLEMS, HELDOUT_PROBLEMS = 2048, 128
"""Defaults of a task whose settings give no number, if its data gives none either."""


class Task(Section, frozen=True, kw_only=True):
    """Source of problems, and the scorer of their answers: a dataset of `reasoning-gym`, or a file of your
    own (docs/tasks.md). `[[task]]`, repeated, trains on several."""

    name: Annotated[str, Meta(min_length=1, max_length=80)] = "spell_backward"
    """Name of a reasoning-gym dataset; this one rewards every letter in its place, a slope to climb. With
    `data`: any name, for reports."""
    params: dict[str, Param] = {}
    """Arguments of that dataset (for example `max_word_len = 10`), or with `data` of the verifier."""
    data: HostPath = ""
    """Problems of your own: a .jsonl or .parquet file, or a folder that the package `datasets` has saved; it
    is read on the host of the reward workers."""
    heldout_data: HostPath = ""
    """Held-out problems of your own; "": some of `data` are held out, the same ones in every run."""
    fields: dict[str, str] = {}
    """Names of your columns for ours, for example `{ prompt = "question", answer = "final" }`."""
    system: str = ""
    """A system turn before each problem of `data` that has none."""
    verifier: str = ""
    """The scorer of responses (docs/tasks.md has the list); "": `reasoning-gym`, and with `data` the function
    of `[reward.function]`."""
    share: NotNegative = 0.0
    """Part of the problems that are this task's, beside other tasks' shares; 0 in all of them: each has as
    many as it has problems."""
    train_problems: Natural = 0
    """Problems to train on; drawn without repetition until all were used once. 0: all of `data`, or 2,048 of
    a dataset."""
    heldout_problems: Natural = 0
    """Problems scored before the first and after the last step and never trained on; 128 answers keep the
    standard error of a mean reward under 0.05. 0: 128, or as many as `heldout_data` has, at most 1,024."""

    def __post_init__(self) -> None:
        if not self.data:
            for name in ("heldout_data", "fields", "system"):
                if getattr(self, name):
                    raise ValueError(f"{name}: expected with data only: {self.name} makes its own problems")
            if self.verifier not in ("", "reasoning-gym"):
                raise ValueError(
                    f"verifier: expected reasoning-gym without data, got {self.verifier}: set data to a file"
                )
        elif self.verifier == "reasoning-gym":
            raise ValueError("verifier: reasoning-gym scores its own problems only; name another for data")


class Rollout(Section, frozen=True, kw_only=True):
    """How a step's responses are made. The step's batch is `prompts` x `samples`."""

    prompts: Count = 32
    """Prompts a step (P0)."""
    samples: Annotated[int, Meta(ge=2)] = 8
    """Samples of one prompt, a group (G); at least two, or no sample has an advantage over its group."""
    max_new_tokens: Count = 64
    """Longest response, tokens; longer ones end there."""
    temperature: Positive = 1.0
    """Sampling temperature while training; 1 makes the log-probs those of the policy itself."""
    eval_temperature: NotNegative = 1.0
    """Temperature on held-out problems; 1 measures the policy that is trained, 0 its likeliest answer."""
    staleness: Annotated[int, Meta(ge=0, le=8)] = 0
    """Steps by which a trained token may be older than the weights that it trains (k). 0: exactly on-policy,
    rollout waits for each new version. k: the batches of the next k steps are rolled out while a step is
    trained, the newest weights taking over in the middle of a response; 8 keeps the open batches bounded."""
    drop_uniform: bool = False
    """Dynamic sampling (DAPO): a prompt whose samples all got the same score gives no gradient; it is dropped
    and another one drawn, until the step has `prompts` groups with a gradient. Costs rollouts for gradients:
    off."""
    max_refills: Natural = 3
    """Most prompts drawn in place of dropped ones, as a multiple of `prompts`; then uniform groups are taken
    as they are. Thrice as many let a policy through that is right (or wrong) on three prompts of four."""
    over_sampling: Annotated[float, Meta(ge=1, le=4)] = 1.0
    """Prompts under way for each one that a step still misses; when the step has `prompts` groups, the rest
    is aborted, and returns in later steps. Cuts the wait for the longest responses, costs tokens, and favours
    prompts with short ones: 1, none."""
    sample_retries: Natural = 1
    """How often a sample is made again, alone and with another seed, if its verifier failed for good; after
    that it has no score and its group goes on without it. One retry shows whether the response or the
    verifier caused it."""
    max_pending: Count = 4
    """Requests that may be pending on one instance beyond its share of all of them, before dispatch is
    delayed (RLBoost's Theta). Its share is sent at once, as far as it has slots."""
    continuous_lb: bool = True
    """Requests move from instances that would finish last to those that would finish first, once their decode
    rates are measured (RLBoost's ContinuousLB). Off: only requests without an instance are assigned."""
    deadline_s: Positive = 20.0
    """Silence of a dispatched request after which another instance gets it;
    far above a decode step (tens of ms), so that a slow instance is not mistaken for a dead one."""
    request_deadline_s: NotNegative = 0.0
    """Time from a request's first dispatch until it ends with its tokens so far, which are scored; 0 = none.
    There is no limit on the number of moves in that time."""
    journal_commit_ms: Annotated[float, Meta(ge=1, le=50)] = 20.0
    """Longest wait of a collected token for its journal commit, ms; 50 is the most that the death of the
    manager may cost in re-sent tokens."""

    @property
    def selects(self) -> bool:
        """Not every group that is rolled out is trained on."""
        return self.drop_uniform or self.over_sampling > 1


class Engine(Section, frozen=True, kw_only=True):
    """The rollout engine of every instance."""

    kind: Literal["builtin", "sglang", "vllm"] = "builtin"
    """Engine of the preemptible instances. `builtin`: PyTorch with continuous batching, in this package;
    `sglang` and `vllm`: a server of theirs, started by the instance or found at `url`. The reserved host's
    engine is always builtin, as it shares its device with the trainer."""
    url: Annotated[str, Meta(pattern=r"^(https?://[^/\s]+)?\Z")] = ""
    """`http://host:port` of a server that the user runs on the instance's own machine; "" = the instance
    starts one. Its weights are this job's from then on."""
    environment: HostPath = ""
    """The virtual environment in which the engine is installed (`make engines`); its interpreter starts the
    server. "" = the one of this process."""
    args: list[str] = []
    """Arguments of the server that is started, after those that the instance gives it."""
    stall_s: Positive = 30.0
    """A server that has requests and makes no token, or does not answer, for so long is given up. Far above
    the longest pause of a healthy one, which is the prefill of a long prompt or the first use of a kernel."""
    start_s: Positive = 600.0
    """Longest time until a server serves new weights; a large model takes minutes to start."""
    in_flight: Literal["handed-over", "kept"] = "handed-over"
    """What happens to requests that a preemptible instance decodes when it loads newer weights.
    `handed-over`: they end there, keep their tokens and continue on the first instance with free capacity;
    `kept`: they stay and continue under the newer weights, as far as their gates admit those. In both cases a
    response has a span for each version, and caches are computed anew. `kept` needs `rollout.staleness` above
    0, or a job that trains nothing; an engine that cannot keep them hands them over."""
    drain_s: NotNegative = 0.0
    """Before a preemptible instance loads newer weights, its requests have so long to end under the present
    ones; it gets no new ones meanwhile. The remaining requests keep their tokens and continue under the newer
    weights. 0: all of them do so, at once."""
    slots: Annotated[int, Meta(ge=1, le=1024)] = 32
    """Requests decoded together; a decode step of a tiny model costs nearly the same for 1 as for 32."""
    max_prompt_tokens: Count = 128
    """Longest prompt, tokens; with `rollout.max_new_tokens` it sizes the KV cache of a slot. Training
    problems with longer ones are passed over, with a warning; a held-out one fails the job."""
    threads: Count = 1
    """CPU threads of one engine, each of which decodes a part of its requests; one, because several processes
    share the cores of a laptop."""


class Training(Section, frozen=True, kw_only=True):
    """The loss and its optimizer (AdamW)."""

    loss: Literal["grpo", "dapo", "gspo", "ppo"] = "dapo"
    """Clipped surrogate. `dapo`: every token has equal weight, so long answers are not favoured; `grpo`:
    every sample has; `gspo`: a ratio of the whole response (clip at a few 1e-4); `ppo`: one clip on both
    sides."""
    importance: Literal["none", "truncated"] = "truncated"
    """Correction of samples made by other weights, or by an engine with other rounding: each token is
    weighted with the ratio of its probabilities, at most `importance_cap`. On-policy the ratio is 1 but for
    rounding. `none`: the surrogate's ratio is against the policy that sampled; only its clip bounds it."""
    importance_cap: Positive = 2.0
    """Largest weight of a token; 2 is what the authors of truncated importance sampling found to be sound."""

    learning_rate: Positive = 4e-4
    """Step size; high because the model is tiny."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """Decay of the first and second moments; 0.95 forgets old gradient scales within a short run."""
    weight_decay: NotNegative = 0.0
    """Decoupled decay; a run of tens of steps does not overfit."""
    clip_low: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    """Lower clip of the probability ratio, 1 - clip_low."""
    clip_high: Positive = 0.28
    """Upper clip, 1 + clip_high; larger than the lower one so that rare tokens may grow (DAPO)."""
    max_grad_norm: Positive = 1.0
    """Gradients beyond this norm are scaled down to it."""
    micro_batch_groups: Count = 4
    """Complete groups that make one forward and backward pass (m_b); they start before the batch is whole."""
    rollout_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Type of the rolled-out weights. `bfloat16`: half the bytes, and at learning rates of large models (1e-5
    and below) few of them change from step to step (docs/weights.md). The optimizer's weights stay float32;
    the trainer computes with the rolled-out weights, so that both agree on every log-prob."""
    threads: Count = 1
    """CPU threads of the trainer."""
    backend: Literal["torch", "fsdp2", "own"] = "torch"
    """`torch`: one process has the whole model; `fsdp2`: each of `processes` has a part (PyTorch FSDP2), for
    a model whose weights, gradients and moments do not fit into one. `own`: nothing is trained here; your own
    trainer publishes weights (`gleaner.publisher`), and the job serves them until it is stopped."""
    processes: Annotated[int, Meta(ge=1, le=64)] = 1
    """Processes of the trainer, a gang on the reserved host: if one ends, all are started again. More than
    one needs `backend = "fsdp2"`."""
    exchange_s: Annotated[float, Meta(ge=1)] = 30.0
    """Longest wait of a process of the gang for the others in one exchange; then the gang is started again.
    Far above the time that one layer takes, so that a busy machine is not mistaken for a frozen process."""
    checkpoint_keep: Count = 2
    """Newest checkpoints kept; a second one survives damage to the newest."""

    def __post_init__(self) -> None:
        if self.processes > 1 and self.backend != "fsdp2":
            raise ValueError(
                f'processes: expected 1 where backend is "{self.backend}" (more need "fsdp2"), '
                f"got {self.processes}"
            )


class Seeding(Section, frozen=True, kw_only=True):
    """Rollout on the training node at the start of a step (RLBoost, Algorithm 1)."""

    initial_s: NotNegative = 0.5
    """First seeding window (T_init); about a rollout of the quickstart, Algorithm 1 moves it from there."""
    eta: Positive = 4.0
    """Adaptation rate: the window moves by the difference of waits divided by it; larger is steadier."""
    min_s: NotNegative = 0.0
    """Shortest window."""
    max_s: NotNegative = 20.0
    """Longest window; a step with no preemptible instance ignores it and runs as co-located."""
    memory: bool = True
    """Remember the window that a number of instances settled at; it returns with that number."""
    controller: Literal["feedback", "model"] = "model"
    """Chooses the window and the number of instances. `model`: a prediction of the step for every choice
    (docs/seeding.md); while it lacks data or steps are short, it uses `feedback`. `feedback`: Algorithm 1."""
    time_weight: NotNegative = 0.5
    """For `model`: value of a share of a step's time relative to the same share of its cost, when it chooses
    the number of instances; 0 = the cheapest token, 1 = cost times time (docs/seeding.md)."""

    def __post_init__(self) -> None:
        if not self.min_s <= self.initial_s <= self.max_s:
            raise ValueError(
                f"initial_s: expected a number from min_s ({self.min_s:g}) to max_s ({self.max_s:g}), "
                f"got {self.initial_s:g}"
            )


class Fleet(Section, frozen=True, kw_only=True):
    """The hosts: their number, and when they are added and removed."""

    reserved: Annotated[int, Meta(ge=1, le=1)] = 1
    """Hosts that stay. One: all processes of the trainer run on it."""
    n_prem_max: Natural = 3
    """Most preemptible hosts at a time, whatever Algorithm 1 requests; three engines fill two cores."""
    trace: HostPath = ""
    """When preemptible hosts are added and removed (CSV, see `gleaner.configs.trace`); "" = `n_prem_max` of
    them, always."""
    notice_s: NotNegative = 10.0
    """Time from a notice to the removal where the trace gives no removal; clouds give 30 to 120 s."""
    first_instance_s: Positive = 300.0
    """Time from the first version of the weights until a preemptible instance serves one; after it the job
    reports that none has, and why. A server of a large model starts in minutes; hosts are paid for meanwhile.
    """
    await_instance: bool = False
    """The first step waits until a preemptible instance serves, for `first_instance_s` at most; the clock of
    the trace begins after that. Off: the reserved host begins alone, without delay."""
    require_instance: bool = False
    """A job fails if no preemptible instance has served within `first_instance_s`, or by its end (`rlctl run`
    ends with exit code 4). Off: it trains on its reserved host alone, and reports that."""
    restarts: Natural = 5
    """Restarts of one supervised process within `restarts_within_s` before its supervisor gives up."""
    restarts_within_s: Positive = 60.0
    """Window of the restart intensity."""


class Weights(Section, frozen=True, kw_only=True):
    """Transfer of weights to the instances."""

    chunk_bytes: Annotated[int, Meta(ge=64 * 1024, le=16 * 2**20)] = 4 * 2**20
    """Bytes of one pulled and hashed range. Shorter ones cost more processor time; longer ones are requested
    again whole if a connection breaks."""
    window: Annotated[int, Meta(ge=1, le=64)] = 4
    """Chunks requested at a time on one connection."""
    pull_sockets: Annotated[int, Meta(ge=1, le=16)] = 4
    """TCP connections of a pull at most, one for each 16 MiB that it lacks. Each has a thread at both ends;
    clouds limit what one of them carries."""
    pull_limit_bytes_s: NotNegative = 0.0
    """Most bytes a second that a host requests from one source, to leave bandwidth for others on its link; 0:
    no limit."""
    relay: bool = True
    """Receivers of a version forward it to others while they receive it, so that the publisher's link carries
    about one copy; false: all of them pull from the publisher."""
    link_bytes_s: Positive = 3.125e9
    """Bandwidth of a host's link in each direction, until a pull has measured it; 25 Gbit/s is usual in
    clouds. A version that the publisher can send to all within half a second is not relayed."""
    delta: bool = True
    """A host that has an earlier version pulls only the changes since, bit for bit, if they are less than 60
    % of the image."""
    compress: bool = False
    """Deltas are compressed with zstd: a tenth smaller where one element in a hundred changed, for slow links
    (docs/benchmarks.md, "Weight deltas")."""
    require_finite: bool = True
    """A version that holds NaN or infinity is refused when it is published, by the name of the tensor; false:
    it is served as it is. The check reads an image as fast as its hashes are made, on another core."""
    kept_delta_bytes: Annotated[int, Meta(ge=0)] = 2 * 2**30
    """Memory of a host for deltas that it serves; beyond it the oldest are dropped, and a host that needs one
    of those pulls the whole image."""
    delta_threads: Annotated[int, Meta(ge=0, le=64)] = 0
    """Threads of a host that make and apply a delta together; 0 = a quarter of its cores, at most 8: engines
    decode beside them."""
    disk: HostPath = ""
    """Folder on a shared file system where each version is written too. It is a checkpoint or its difference
    to the one before, for engines of slime or Stitch (docs/weights.md, "On disk"); one for each run. "" =
    none.
    """
    disk_layout: Literal["slime", "stitch"] = "slime"
    """`stitch`: versions lie in `updates/`, and the file `latest` names the newest, after the run."""
    disk_encoding: Literal["xor", "overwrite"] = "xor"
    """Encoding of differences: `overwrite` may be applied twice, and is larger; Stitch reads `xor`."""
    disk_checksum: Literal["xxh3-128", "blake3", "adler32"] = "xxh3-128"
    """Digest of each changed tensor beside its difference; readers check it."""
    disk_whole_every: Annotated[int, Meta(ge=0)] = 32
    """Every so many versions a whole one is written, and everything older than the whole one before it is
    deleted; 0 = only the first one is whole, and nothing is deleted."""

    def __post_init__(self) -> None:
        if self.disk_layout == "stitch" and self.disk_encoding != "xor":
            raise ValueError('disk_encoding: expected "xor" where disk_layout is "stitch", got "overwrite"')


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
    """Processor time for one response; more has the status timeout and scores 0. With `trusted`: time on the
    clock of an async function; a longer one failed."""


class Http(Section, frozen=True, kw_only=True):
    """A service that scores responses: verifier `http` (docs/functions.md)."""

    url: Annotated[str, Meta(pattern=r"^(https?://[^/\s@]+(/\S*)?)?\Z")] = ""
    """URL to which responses are posted; with `style = "roll"` the part before `/v1/submit_task`. It contains
    no user and password: `headers_env`."""
    style: Literal["own", "slime", "openrlhf", "roll"] = "own"
    """Format of request and answer: ours (`prompt`, `messages`, `response`, `answer`, `info`, to a number or
    an object with `score`), or that of services for slime, OpenRLHF or ROLL."""
    deadline_s: Positive = 30.0
    """Time for one response, on the clock, with all tries; then its status is `unavailable`."""
    max_concurrent: Annotated[int, Meta(ge=1, le=1024)] = 16
    """Calls of one reward worker at a time."""
    headers_env: Annotated[str, Meta(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?\Z")] = ""
    """Name of a variable in the environment of the job's head that holds the value of the header
    `Authorization`; "" = none is sent."""


class Reward(Section, frozen=True, kw_only=True):
    """Scoring of answers."""

    workers: Count = 1
    """Worker processes; rule-based scores take microseconds, so a second one idles."""
    deadline_s: Positive = 2.0
    """Processor time of the scores that are made together, in the sandbox. A score that takes longer alone
    has the status timeout and scores 0. On the clock it may take twice as long, waits for a processor not
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
    sandbox: Sandbox = Sandbox()
    function: Function = Function()
    http: Http = Http()

    @property
    def worker_s(self) -> float:
        """Time limit of a worker for one task; then it is killed, and the attempt counts as failed. Its
        sandbox ends programs long before."""
        waits_s = self.http.deadline_s if self.http.url else 0.0
        return 4 * max(self.deadline_s, self.function.deadline_s, waits_s)

    @property
    def verdict_s(self) -> float:
        """Longest time of a verdict, whatever happens to the workers: one try with others, then each attempt
        alone."""
        return self.worker_s * (self.attempts + 1)

    @property
    def sick_limit_s(self) -> float:
        """Longest time that the verifier may be sick: a verdict requested then must have arrived."""
        return max(self.sick_s, self.verdict_s)


class Liveness(Section, frozen=True, kw_only=True):
    """How soon a silence is noticed, and so what an idle cluster costs. All periodic messages that only show
    or find out which processes live follow from these two.

    A killed process is known at once whatever they are, by its closed or refused connection; a host without
    power, or behind a cut, after 3 to 5 s, by the pings of its connections. These settings are for what none
    of that shows: a process that is stalled, and lost messages about hosts and instances.
    """

    beat_s: Positive = 0.5
    """A watched process that was silent for so long is probed; the report samples the fleet at the same
    interval."""
    dead_s: Positive = 5.0
    """Silence after which a peer is dead for certain and its work goes elsewhere; never before 60 % of it,
    and in between when its silence is unlikely, given its earlier beats."""

    hung_silences: NotNegative = 2.0
    """A child process without a heartbeat over its control link for so many times `dead_s` is killed; for its
    supervisor that is an end like any other. At 2 no process counts on it any more: its peers gave it up
    after one, and its names lapse after two. 0: only an exit is seen, as a debugger needs it."""
    start_s: Positive = 120.0
    """The same limit for a process that has not given its first heartbeat yet (it imports, from a cold disk)
    or that uses the processor meanwhile (its loop is held up by work, or starved by other processes)."""

    work_s: Positive = 300.0
    """A piece of work of the trainer (a micro-batch, an update, an image) or of the builtin engine (a turn)
    that takes so long, and ten times as long as the longest of its kind so far, has hung: its process ends
    with that cause and is started again. Far above the differences of healthy pieces. Servers:
    `engine.stall_s`."""
    first_work_s: Positive = 1800.0
    """The same for the first piece of a kind: it may load a model from a slow disk, or compile."""

    @property
    def hello_s(self) -> float:
        """Between two hellos of a host to the Scheduler: five fit into the silence that counts as its
        death. News for hosts do not wait for them: a new job calls them."""
        return self.dead_s / 5

    @property
    def check_s(self) -> float:
        """Between two queries of an instance whether the manager still counts on it: a message lost between
        the two is made good within half of the time that a death may take to be seen."""
        return self.dead_s / 2

    @property
    def lease_s(self) -> float:
        """A process that sends nothing to the registry for so long loses its names; it renews them at a
        third. The slowest of all limits: peers notice a death earlier, by connection or silence, and a
        successor takes a name at once."""
        return self.dead_s * 2

    @property
    def hung_s(self) -> float:
        """Seconds without a heartbeat that end a child process; 0: they never do."""
        return self.dead_s * self.hung_silences

    @property
    def successor_s(self) -> float:
        """The job waits so long for an answer of a process that may have to be replaced; then it fails, and
        can be resumed. It is above every silence that ends a process, so that no other process fails first: a
        process that hangs in its start, and the start of the next one."""
        return max(self.start_s, self.hung_s) + 60.0

    def __post_init__(self) -> None:
        if self.beat_s >= self.dead_s:
            raise ValueError(f"dead_s: expected more than beat_s ({self.beat_s:g}), got {self.dead_s:g}")
        if 0 < self.hung_silences < 1:
            raise ValueError(
                f"hung_silences: expected 0, or at least 1, got {self.hung_silences:g}: a process that its "
                "peers count on is not killed"
            )


class Prices(Section, frozen=True, kw_only=True):
    """Prices of hosts an hour; only the report uses them."""

    reserved_per_hour: NotNegative = 4.0
    """One reserved host, currency an hour; the order of an H100 on demand."""
    preemptible_per_hour: NotNegative = 1.2
    """One preemptible host; spot markets ask about 30 % of the price on demand."""
    currency: Annotated[str, Meta(min_length=1, max_length=8)] = "USD"
    """Shown beside the numbers."""


class Network(Section, frozen=True, kw_only=True):
    """Addresses and keys of listening sockets."""

    bind: Annotated[str, Meta(min_length=1, max_length=253)] = "127.0.0.1"
    """Host address that every socket binds; anything beyond loopback needs `keys`."""
    keys: HostPath = ""
    """Key directory made by `rlctl keygen`; "" = no encryption, loopback only."""
    bulk: Literal["loopback", "clear"] = "loopback"
    """Where weights may travel unencrypted. Their pulls are plain TCP: signed requests, hashed chunks,
    content that anyone on the network can read. `loopback`: inside this host only, a `bind` beyond it is
    refused; `clear`: on the network of `bind` too."""


class Limits(Section, frozen=True, kw_only=True):
    """Bounds on everything that could grow."""

    mailbox: Count = 1024
    """User messages waiting at one actor; beyond it an ask is answered `Overloaded`."""
    ring_frames: Count = 4096
    """Unacknowledged token frames an instance keeps, one a decode step; a full ring pauses decoding."""
    credit_frames: Count = 256
    """Token frames an instance may send ahead of the manager's acknowledgement."""
    journal_events: Count = 20_000
    """Events that the manager journals before a snapshot replaces them; one is made at the release of a batch
    too. Bounds its replay after a restart."""
    journal_bytes: Count = 64 * 2**20
    """Bytes of token frames that the manager journals before a snapshot replaces them, or the size of a
    snapshot of the open requests, if that is more. Half a second of replay; with fewer, more snapshots are
    written."""
    log_bytes: Annotated[int, Meta(ge=64 * 1024)] = 16 * 2**20
    """Size of one log file before it is rotated; one older file is kept."""


class Traces(Section, frozen=True, kw_only=True):
    """Spans of messages, from actor to actor and from process to process (OpenTelemetry)."""

    exporter: Literal["none", "console", "file", "otlp"] = "none"
    """Destination of the spans: none, which costs nothing; each process's standard error; a file of JSON
    lines beside its log; or an OpenTelemetry collector. All but "none" need `pip install 'gleaner[traces]'`.
    """
    endpoint: Annotated[str, Meta(pattern=r"^(https?://\S+)?\Z")] = "http://127.0.0.1:4318/v1/traces"
    """Address of the collector, for "otlp": OTLP over HTTP."""
    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of the traces that are kept; a trace is kept or left out as a whole."""


class Loggers(Section, frozen=True, kw_only=True):
    """Where `rlctl run` shows the run's figures beside its own report. They need `pip install
    'gleaner[loggers]'`. One that fails is reported and dropped, and the run goes on."""

    tensorboard: bool = False
    """Event files in `tensorboard/` of the run's folder."""
    wandb: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{0,128}\Z")] = ""
    """Project of Weights & Biases that gets a run of the same id; "" = none."""
    wandb_offline: bool = False
    """Keep what would be sent in `wandb/` of the run's folder, for `wandb sync`; needs no network."""


class Gateway(Section, frozen=True, kw_only=True):
    """HTTP in front of the job's rollout (docs/gateway.md): SGLang's, OpenAI's and vLLM's wires."""

    listen: Annotated[str, Meta(pattern=r"^(\S+:\d{1,5})?\Z")] = ""
    """HOST:PORT that the head's gateway listens at, port 0 for a free one; "" = none."""
    api_keys: HostPath = ""
    """File of API keys, one a line, that clients send as `Authorization: Bearer KEY`; those in the variable
    GLEANER_API_KEYS of its environment (with commas) count too. Needed beyond loopback, unless `open`."""
    control_keys: HostPath = ""
    """File of keys, one a line, for routes that change state (weights, workers, pauses, aborts); those in the
    variable GLEANER_CONTROL_KEYS count too. They open every other route as well; API keys then open no such
    route. "" = API keys open all."""
    hosts: list[str] = []
    """Names by which clients reach a gateway that needs no key, beside its addresses, localhost and the name
    in `listen`; a request with another name in its `Host` is refused: a browser may have been lured to it.
    ["*"] = any name."""
    open: bool = False
    """Answer beyond loopback without keys: any client that reaches the port may use the engines."""
    model_name: str = ""
    """Name of the model in `/v1/models`; "" = the last part of `model.path`, or `job.name`."""
    max_concurrent: Annotated[int, Meta(ge=1, le=65536)] = 1024
    """Requests under way at once; one more is answered 503 with Retry-After."""
    max_body_bytes: Annotated[int, Meta(ge=1024)] = 16 * 2**20
    """Longest body of an HTTP request; a longer one is answered 413. A list of 1M token ids takes 8 MB."""
    deadline_s: Annotated[float, Meta(gt=0, le=3600)] = 600.0
    """For a request that names none; then it ends with its tokens so far. Clients of rollout wait without
    limit."""
    max_deadline_s: Annotated[float, Meta(gt=0, le=3600)] = 3600.0
    """Longest that a request may name, with the header `X-Request-Deadline-S`; longer ones are cut to it."""
    heartbeat_s: Annotated[float, Meta(ge=0.05)] = 10.0
    """Silence of a stream after which it sends `: alive`; below the idle timeouts of usual proxies (60 s)."""
    version_wait_s: NotNegative = 0.0
    """How long a request waits for a version of the weights that no engine serves yet; then 409."""
    buffer_tokens: Count = 8192
    """Unread tokens of one request that are kept for a slow reader; beyond it they stay in the manager's log
    until they are read."""
    server_info: dict[str, Param] = {}
    """More keys of `/server_info`: slime compares some (`enable_memory_saver`, `dtype`) with its own."""
    routed_experts: bool = False
    """Requests may ask which experts their tokens were routed to, for router replay. The engines must be
    SGLang, with `--enable-return-routed-experts` among `engine.args`."""

    def __post_init__(self) -> None:
        if self.deadline_s > self.max_deadline_s:
            raise ValueError(
                f"deadline_s: expected at most max_deadline_s ({self.max_deadline_s:g}), "
                f"got {self.deadline_s:g}"
            )


class Ablation(Section, frozen=True, kw_only=True):
    """Features that comparisons switch off, to measure their value (docs/evaluation.md); for no other use."""

    recompute: bool = False
    """Requests of a lost instance begin anew, as in systems that collect only whole responses."""
    synchronous_weights: bool = False
    """An instance that joins within a step gets weights with the next one, as in systems that push
    weights."""
    every_instance: bool = False
    """`fleet.n_prem_max` preemptible hosts are wished for, however many Algorithm 1 does."""


class Config(Section, frozen=True, kw_only=True):
    """All settings of one main job, resolved."""

    job: Job = Job()
    model: Model = Model()
    task: tuple[Task, ...] = (Task(),)
    rollout: Rollout = Rollout()
    engine: Engine = Engine()
    training: Training = Training()
    seeding: Seeding = Seeding()
    fleet: Fleet = Fleet()
    weights: Weights = Weights()
    reward: Reward = Reward()
    liveness: Liveness = Liveness()
    prices: Prices = Prices()
    network: Network = Network()
    limits: Limits = Limits()
    traces: Traces = Traces()
    gateway: Gateway = Gateway()
    ablation: Ablation = Ablation()
    loggers: Loggers = Loggers()

    @property
    def train_problems(self) -> int:
        """Training problems of all tasks."""
        return sum(task.train_problems or TRAIN_PROBLEMS for task in self.task)

    @property
    def heldout_problems(self) -> int:
        """Held-out problems of all tasks."""
        return sum(task.heldout_problems or HELDOUT_PROBLEMS for task in self.task)

    def shares(self, *, heldout: bool = False) -> list[float]:
        """Share of each task in the problems of the job; only their ratios count."""
        if heldout:
            return [float(task.heldout_problems or HELDOUT_PROBLEMS) for task in self.task]
        return [task.share or float(task.train_problems or TRAIN_PROBLEMS) for task in self.task]

    def __post_init__(self) -> None:
        if not self.task:
            raise ValueError("task: expected at least one")
        names = [task.name for task in self.task]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"task: the name {twice[0]} is there twice; give each task its own")
        if len({task.share > 0 for task in self.task}) > 1:
            raise ValueError("task: expected a share above 0 in every task or in none")
        if self.training.micro_batch_groups > self.rollout.prompts:
            raise ValueError(
                f"training.micro_batch_groups: expected at most rollout.prompts ({self.rollout.prompts}), "
                f"got {self.training.micro_batch_groups}"
            )
        if self.job.exact and self.rollout.staleness:
            raise ValueError(
                "rollout.staleness: expected 0 where job.exact is set, got "
                f"{self.rollout.staleness}: when weights change in the middle of a response is no function "
                "of the seed"
            )
        if self.engine.in_flight == "kept":
            if not self.rollout.staleness and self.training.backend != "own":
                raise ValueError(
                    "engine.in_flight: expected handed-over where rollout.staleness is 0, got kept: no token "
                    "may be of other weights than its response began with; set rollout.staleness above 0"
                )
            if self.engine.drain_s:
                raise ValueError(
                    "engine.drain_s: expected 0 where engine.in_flight is kept, got "
                    f"{self.engine.drain_s:g}: what stays where it is needs no time to end"
                )
        if self.job.exact and self.rollout.over_sampling > 1:
            raise ValueError(
                "rollout.over_sampling: expected 1 where job.exact is set: which groups end first, and so "
                f"are trained on, is a matter of time; got {self.rollout.over_sampling:g}"
            )
        if self.job.exact and self.engine.kind != "builtin":
            raise ValueError(
                f"engine.kind: expected builtin where job.exact is set, got {self.engine.kind}: its tokens "
                "depend on what it decodes beside them"
            )
        for section, threads in (("engine", self.engine.threads), ("training", self.training.threads)):
            if self.job.exact and threads != 1:
                raise ValueError(f"{section}.threads: expected 1 where job.exact is set, got {threads}")
