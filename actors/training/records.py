"""Records of a run's history, the input of the report and the live view.

Owns the record types and the port of their store; `history` keeps them in a file. Pure.

Times: `t_s` is seconds since the run began; after a resume it goes on from the last record.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from gleaner.actors.training.usage import ResourceUsage

PhaseName = Literal["model", "head", "trainer", "evaluation", "instance", "steps", "checkpoint", "audit"]


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=str.lower):
    """An event. Its kind is the lower-case class name."""

    t_s: float


class Run(Record, frozen=True, kw_only=True):
    """The run began or resumed: a resume writes another one. config: the resolved settings."""

    run_id: str
    seed: int
    steps: int
    config: dict[str, object]


class Sample(Record, frozen=True, kw_only=True):
    """A fleet sample, taken at a steady period.

    reserved, preemptible: hosts alive. serving: instances that have the step's weights. executing, pending:
    requests. tokens_collected, migrations: totals of the run so far; moves: the migrations that balanced
    load. tokens_per_s: since the last sample. busy: preemptible instances that have requests; None in
    histories of older programs. wasted: tokens so far that no step is trained on, by cause
    (`gleaner.actors.rollout.state.events.Counters`), generated_twice beside them. weights: how instances got
    versions of the weights (`RolloutFigures.weights_pulled`), since the manager's start. verdicts: so far, by
    status (`gleaner.actors.reward.verdicts`); asked_again: verdicts of a sick verifier that no sample has,
    since the manager's start; failure: the text of the last failure of the verifier, its sandbox or its
    worker.
    """

    step: int
    reserved: int
    preemptible: int
    serving: int
    executing: int
    pending: int
    tokens_collected: int
    migrations: int
    tokens_per_s: float
    busy: int | None = None
    wasted: dict[str, int] = {}
    generated_twice: int = 0
    moves: int = 0
    weights: dict[str, int] = {}
    verdicts: dict[str, int] = {}
    asked_again: dict[str, int] = {}
    failure: str = ""


class Step(Record, frozen=True, kw_only=True):
    """A step ended. step counts from 1. reward: mean over its `samples`, those that have a score; None
    without any. unscored: the others.

    step_s: from the end of the previous step (for the first one, from its start) to its own. Its parts do not
    overlap; the remainder is planning, submission, messages. seeding_s: rollout on the training host;
    waiting_s: trainer idle for responses; training_s: forward, backward, optimizer; weights_s: publishing:
    all four of the attempt that succeeded. recovery_s: see `step_clock`. evaluation_s: on held-out problems,
    before this step. In histories of older programs step_s begins later, and the last two are 0:
    `account.whole_steps` reads them. t_seed_s, n_prem, width (of the engines of preemptible hosts; 0: as the
    settings have it): what was chosen for the next step. predicted_s: this step as it was predicted, None if
    it was not. grad_norm, loss: None if they were not finite (JSON has no
    NaN). staleness_mean, staleness_max: of its tokens, the number of versions between the weights that made
    them and those of the step. drift: mean estimated KL of the policy from the sampling one, nats a token;
    None if it was not finite or not measured. clipped, truncated: shares of its tokens: clipped off, and with
    a cut importance weight. stair_s, half_s: see `StepResult`.
    """

    step: int
    reward: float | None
    samples: int
    tokens: int
    seeding_s: float
    waiting_s: float
    training_s: float
    weights_s: float
    step_s: float
    t_seed_s: float
    n_prem: int
    grad_norm: float | None
    loss: float | None
    predicted_s: float | None = None
    staleness_mean: float = 0.0
    staleness_max: int = 0
    drift: float | None = None
    clipped: float | None = None
    truncated: float | None = None
    recovery_s: float = 0.0
    evaluation_s: float = 0.0
    unscored: int = 0
    stair_s: float | None = None
    half_s: float = 0.0
    width: int = 0


class Round(Record, frozen=True, kw_only=True):
    """The round of a step in a job with rounds, written after its `Step`: see `round_end.RoundEnd`. round:
    "short", "long", or "plain" for a step that was rolled out whole. ended, aborted: tokens of the launched
    responses, each with their number; of more than 64 different lengths neighbours are joined."""

    step: int
    round: str
    launched: int
    counted: int
    over: int
    deferred: int
    queued: int
    oldest_age: int
    edge: int
    longest: int
    ended: tuple[tuple[int, int], ...]
    aborted: tuple[tuple[int, int], ...]
    aborted_tokens: int
    trained_tokens: int
    trained_responses: int


class StepPath(Record, frozen=True, kw_only=True):
    """The critical path of a step, written after its `Step`: seconds by stage (`step_path.STAGES`), in their
    order. request: the response that the trainer got last; instance: where it was sent last; sends: how often
    it was sent. scoring_s: seconds in which any response of the step waited for its verdict; those beyond the
    stage `verdict` are hidden behind other work. Missing where the manager was restarted within the step."""

    step: int
    request: str
    instance: str
    sends: int
    stages: dict[str, float]
    scoring_s: float | None = None


class Eval(Record, frozen=True, kw_only=True):
    """Mean reward on held-out problems under the weights after `step`: before the first step, after the last
    one, or in between. problems: those whose samples have a score; without any the reward is None. tasks: the
    mean of each task, of a job with several. variance: of the problems' rewards, None of fewer than two."""

    step: int
    when: Literal["first", "during", "last"]
    reward: float | None
    problems: int
    tasks: dict[str, float | None] = {}
    variance: float | None = None


class Node(Record, frozen=True, kw_only=True):
    """A host joined, got notice, was drained, left, was killed, stayed after all (spared), or lacks a
    requirement of its part of the job (unfit). role: reserved or preemptible. devices: its GPUs; a host
    without any counts as one. cause: the requirement that an unfit host lacks."""

    node: str
    role: str
    event: Literal["joined", "left", "killed", "noticed", "drained", "spared", "unfit"]
    devices: int = 1
    cause: str = ""


class Phase(Record, frozen=True, kw_only=True):
    """A phase of the run begins. rlctl writes those before there is a history: the model, the head, and after
    the end the audit. The controller writes: the trainer starts, held-out problems are evaluated, the first
    preemptible instance is waited for, steps are trained, the last checkpoint is written."""

    phase: PhaseName


class FirstInstance(Record, frozen=True, kw_only=True):
    """served: a preemptible instance serves for the first time since the run began, or began again. Not
    served: none has for `fleet.first_instance_s`. waited_s: since there were weights to serve. hosts:
    preemptible ones that were up. why: the known reason, "" for none."""

    served: bool
    waited_s: float
    hosts: int
    why: str = ""


class Verifier(Record, frozen=True, kw_only=True):
    """The verifier is sick (`gleaner.actors.reward.health`), and no group is handed out; or it is well again.
    why: counts by status, and the last text."""

    sick: bool
    why: str = ""


class Restart(Record, frozen=True, kw_only=True):
    """A supervisor started an actor or a child process again."""

    actor: str
    cause: str
    incarnation: int


class End(Record, frozen=True, kw_only=True):
    """The run ended and its journals were checked. violations: invariants that did not hold, in words; of
    these, the number that `unchecked` gives could not be checked."""

    tokens_collected: int
    tokens_lost: int
    tokens_generated_twice: int
    requests_migrated: int
    ok: bool
    violations: list[str] = []
    unchecked: int = 0
    wasted: dict[str, int] = {}
    verdicts: dict[str, int] = {}
    failure: str = ""


AnyRecord = (
    Run | Sample | Step | Round | StepPath | Eval | Node | Restart | Phase | FirstInstance | Verifier | End
)


class History(Protocol):
    """The store of a run's records; opened for appending. A resumed run appends to its own."""

    @property
    def last_t_s(self) -> float:
        """The time of the last whole record; 0.0 if there is none."""

    @property
    def last_step(self) -> int:
        """The last step in it; 0 for none."""

    @property
    def served(self) -> bool:
        """Whether it records that a preemptible instance has served since the run last began."""

    @property
    def step_began_s(self) -> float | None:
        """When the step after the last one began: at that one's end, or at the start of the first one. None
        before that."""

    @property
    def hosts(self) -> Mapping[str, str]:
        """The role of each host that it has as up."""

    @property
    def used(self) -> ResourceUsage:
        """The account of the run up to its last record."""

    def write(self, record: AnyRecord) -> None:
        """Append one record. Raises a JournalFull if there is no space; then nothing is written."""


def served_after(record: AnyRecord, served: bool) -> bool:
    """What `History.served` is after `record`, where it was `served` before."""
    match record:
        case Run():
            return False
        case FirstInstance():
            return record.served
        case _:
            return served


def hosts_after(record: AnyRecord, hosts: Mapping[str, str]) -> Mapping[str, str]:
    """What `History.hosts` is after `record`, where it was `hosts` before."""
    match record:
        case Run():
            return {}
        case Node(event="joined"):
            return {**hosts, record.node: record.role}
        case Node(event="left" | "killed"):
            return {node: role for node, role in hosts.items() if node != record.node}
        case _:
            return hosts


def finite(value: float) -> float | None:
    """The value, or None if it is not finite, because JSON cannot represent it."""
    return value if math.isfinite(value) else None


def mean(values: Sequence[float]) -> float | None:
    """The mean; None for no values."""
    return sum(values) / len(values) if values else None


def began_s(record: AnyRecord, before_s: float | None) -> float | None:
    """What `History.step_began_s` is after `record`, where it was `before_s` before."""
    begins = before_s is None and isinstance(record, Phase) and record.phase == "steps"
    return record.t_s if begins or isinstance(record, Step) else before_s
