"""Settings of rollout: its batches, its engines, its seeding window."""

from typing import Annotated, Literal

from msgspec import Meta

from gleaner.configs.sections.values import Count, HostPath, Natural, NotNegative, Positive, Section


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
    balancing: Literal["measured", "published"] = "measured"
    """Rules by which requests get an instance and move. `measured`: by shares of the work and measured
    speeds; `published`: RLBoost's Algorithm 2 as printed, for comparison."""
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


WIDTH_ARGS = ("--tp-size", "--tensor-parallel-size", "--tp", "--dp-size", "--data-parallel-size", "--dp")
"""Arguments of SGLang that `Engine.widths` gives."""


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
    widths: list[Count] = []
    """Tensor-parallel widths: devices over which an SGLang server spreads one copy of the model, powers of 2.
    It has as many copies as its host's devices hold. The first one is that of the job's begin; `rlctl
    simulate` predicts the best one. []: as `args` have it."""
    width_plan: Literal["off", "paper", "model"] = "off"
    """Changes of the width between steps, among `widths`, by a relaunch of servers (docs/rounds.md). `off`:
    none. `model`: to the width with the shortest predicted step, where that gains more than the
    relaunch; needs `seeding.controller = "model"`. `paper`: RollPacker's rule, by the number of requests that
    lost their caches; to compare with."""
    relaunch_s: Positive = 60.0
    """Assumed time of a relaunch, from the end of a server until the next one serves, which `width_plan`
    weighs against its gain; simulated engines take so long."""
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

    def __post_init__(self) -> None:
        if self.widths:
            self._check_widths()
        if self.width_plan != "off" and len(self.widths) < 2:
            raise ValueError(
                f"width_plan: expected off where widths has fewer than two, got {self.width_plan}: there is "
                "nothing to choose from; set widths, as in [1, 2, 4]"
            )

    def _check_widths(self) -> None:
        """Raises ValueError."""
        if self.kind != "sglang":
            raise ValueError(
                f"widths: expected [] where kind is {self.kind}, got {self.widths}: only servers of sglang "
                "are started with a width"
            )
        if self.url:
            raise ValueError(
                f"widths: expected [] where url is set, got {self.widths}: the server there is not "
                "started by the instance"
            )
        if odd := [width for width in self.widths if width & (width - 1)]:
            raise ValueError(f"widths: expected powers of 2, got {odd[0]}")
        if len(set(self.widths)) < len(self.widths):
            raise ValueError(f"widths: expected each one once, got {self.widths}")
        if given := [word for word in self.args if word.partition("=")[0] in WIDTH_ARGS]:
            raise ValueError(f"args: {given[0]} has no effect where widths is set; leave it out")


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
    controller: Literal["feedback", "model", "artifact"] = "model"
    """Chooses the window and the number of instances. `model`: a prediction of the step for every choice
    (docs/seeding.md); while it lacks data or steps are short, it uses `feedback`. `feedback`: Algorithm 1.
    `artifact`: the rule of RLBoost's public code, to compare with."""
    stairs: Literal["off", "paper", "model"] = "off"
    """`off`: all engines of the trainer's host leave at the end of the window. `paper`: half of them leave
    when 20 to 50 % of the responses are complete and the other half has enough cache for the rest
    (RollPacker's stream trainer); the trainer trains complete groups on their devices meanwhile. `model`: at
    the time with the shortest predicted step. Needs `training.backend = "fsdp2"` with an even number of
    `training.processes`, and engines that can be halved (docs/seeding.md)."""
    time_weight: NotNegative = 0.5
    """For `model`: value of a share of a step's time relative to the same share of its cost, when it chooses
    the number of instances; 0 = the cheapest token, 1 = cost times time (docs/seeding.md)."""

    def __post_init__(self) -> None:
        if not self.min_s <= self.initial_s <= self.max_s:
            raise ValueError(
                f"initial_s: expected a number from min_s ({self.min_s:g}) to max_s ({self.max_s:g}), "
                f"got {self.initial_s:g}"
            )
