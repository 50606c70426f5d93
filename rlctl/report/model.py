"""Report: the numbers of a run, computed from its history.

Pure: records go in, a `Report` (the form of report.json) and a `Story` (the input of the plots) come out. For
a run that has not ended, figures that need the end are None, never a guess.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gleaner.actors.training.account import whole_steps
from gleaner.actors.training.history import (
    AnyRecord,
    End,
    Eval,
    FirstInstance,
    Node,
    Restart,
    Run,
    Sample,
    Step,
)
from gleaner.actors.training.records import StepPath
from gleaner.configs.schema import Config
from gleaner.rlctl.cost_account import Account, account_of
from gleaner.rlctl.report.critical_path import ScoringTime, StageTime, newest, scoring_time, stage_times
from gleaner.rlctl.report.step_times import StepTime, step_times
from gleaner.rlctl.report.verdict import Instances, Outcome, Verdicts, instances_of, outcome_of, verdicts_of

PREEMPTIBLE = "preemptible"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of report.json."""


class Reward(Part, frozen=True, kw_only=True):
    """Mean rewards, over the samples that have a score; None where there is none. first, last: held-out
    problems before the first and after the last step. tasks: the same two for each task of a job with
    several."""

    first: float | None
    last: float | None
    per_step: list[float | None]
    tasks: dict[str, tuple[float | None, float | None]] = {}


def reward_of(evals: Sequence[Eval], per_step: list[float | None]) -> Reward:
    """The rewards of a run, from its evaluations and its steps."""
    first = next((one for one in evals if one.when == "first"), None)
    last = next((one for one in reversed(evals) if one.when == "last"), None)
    names = dict.fromkeys([*(first.tasks if first else ()), *(last.tasks if last else ())])
    return Reward(
        first=first.reward if first else None,
        last=last.reward if last else None,
        per_step=per_step,
        tasks={
            name: (first.tasks.get(name) if first else None, last.tasks.get(name) if last else None)
            for name in names
        },
    )


class Tokens(Part, frozen=True, kw_only=True):
    """Response tokens. collected: logged by the manager, each once. lost: collected tokens that are in no
    record. generated_twice: arrived under a dispatch that had been taken back, and dropped. The last two are
    None until the run has ended and its journals were checked."""

    collected: int
    lost: int | None
    generated_twice: int | None


class Requests(Part, frozen=True, kw_only=True):
    """migrated: dispatches of a request after its first one, each from its last collected token; moved:
    dispatches that were made to balance load, as of the last poll of the fleet."""

    migrated: int
    moved: int = 0


class WeightsPulled(Part, frozen=True, kw_only=True):
    """How instances received weight versions: as deltas (`delta_`), or as images (`whole_`), as of the last
    poll of the fleet. image_bytes: bytes of all of them as images."""

    delta_versions: int
    delta_bytes: int
    whole_versions: int
    whole_bytes: int
    image_bytes: int


class Preemptions(Part, frozen=True, kw_only=True):
    """Preemptible hosts taken away. killed: without notice; noticed: with one. Each is counted once."""

    killed: int
    noticed: int


class RestartCount(Part, frozen=True, kw_only=True):
    """How often an actor was started again for one cause."""

    actor: str
    cause: str
    count: int


class Cost(Part, frozen=True, kw_only=True):
    """Money at the prices of the settings, for the run's own seconds; the head is not charged.

    reserved: every reserved host for the whole run; preemptible: each host while it was up.
    at_reserved_price: the same host hours at the reserved price. `Report.account` has the hours by use.
    """

    currency: str
    reserved: float
    preemptible: float
    total: float
    reserved_hours: float
    preemptible_hours: float
    at_reserved_price: float


class Report(Part, frozen=True, kw_only=True):
    """report.json. ok: None while the run has not ended. violations: invariants that did not hold;
    `unchecked` of them could not be checked. wall_s: seconds that the run was up. instances: None where the
    settings ask for no preemptible host, or cannot be read. verdicts: None where there was none.
    critical_path, scoring: of the steps that were measured."""

    format: int = 1
    run_id: str
    seed: int
    finished: bool
    ok: bool | None
    violations: list[str]
    unchecked: int = 0
    steps: int
    steps_planned: int
    wall_s: float
    reward: Reward
    tokens: Tokens
    requests: Requests
    preemptions: Preemptions
    resumes: int
    restarts: list[RestartCount]
    cost: Cost | None
    account: Account | None = None
    weights: WeightsPulled | None = None
    instances: Instances | None = None
    outcome: Outcome | None = None
    step_times: list[StepTime] = []
    critical_path: list[StageTime] = []
    scoring: ScoringTime | None = None
    verdicts: Verdicts | None = None


@dataclass(frozen=True, slots=True)
class Life:
    """One stay of a host. ended: how; None while it is up."""

    node: str
    role: str
    from_s: float
    to_s: float
    ended: str | None


@dataclass(frozen=True, slots=True)
class Story:
    """A history sorted by kind. steps: one record a step, each from the end of the one before."""

    end_s: float
    runs: Sequence[Run]
    steps: Sequence[Step]
    samples: Sequence[Sample]
    evals: Sequence[Eval]
    nodes: Sequence[Node]
    firsts: Sequence[FirstInstance]
    lives: Sequence[Life]
    restarts: Sequence[Restart] = ()
    paths: Sequence[StepPath] = ()


def story_of(records: Sequence[AnyRecord]) -> Story:
    """Sort records for the plots."""
    nodes = [record for record in records if isinstance(record, Node)]
    end_s = max((record.t_s for record in records), default=0.0)
    return Story(
        end_s=end_s,
        runs=[record for record in records if isinstance(record, Run)],
        steps=whole_steps(records),
        samples=[record for record in records if isinstance(record, Sample)],
        evals=[record for record in records if isinstance(record, Eval)],
        nodes=nodes,
        firsts=[record for record in records if isinstance(record, FirstInstance)],
        lives=lives_of(records, end_s),
        restarts=[record for record in records if isinstance(record, Restart)],
        paths=newest([record for record in records if isinstance(record, StepPath)]),
    )


def lives_of(records: Sequence[AnyRecord], end_s: float) -> list[Life]:
    """Stays of all hosts, by their start time. A resume ends every stay, because the hosts ended with the
    run.

    A stay ends when its host was killed or left; a drained host without a later record ended there.
    """
    up: dict[str, Node] = {}
    drained: dict[str, float] = {}
    lives: list[Life] = []
    last_s = 0.0

    def close(node: str, to_s: float, ended: str | None) -> None:
        born = up.pop(node)
        lives.append(Life(node, born.role, born.t_s, to_s, ended))
        drained.pop(node, None)

    for record in records:
        if isinstance(record, Run):
            for node in list(up):
                close(node, drained.get(node, last_s), "drained" if node in drained else "interrupted")
        elif isinstance(record, Node):
            if record.event == "joined":
                if record.node in up:
                    close(record.node, drained.get(record.node, record.t_s), "replaced")
                up[record.node] = record
            elif record.event == "drained" and record.node in up:
                drained[record.node] = record.t_s
            elif record.event == "spared":
                drained.pop(record.node, None)
            elif record.event in ("killed", "left") and record.node in up:
                close(record.node, record.t_s, record.event)
        last_s = record.t_s
    for node in list(up):
        close(node, drained.get(node, end_s), "drained" if node in drained else None)
    return sorted(lives, key=lambda life: (life.from_s, life.node))


def report_of(records: Sequence[AnyRecord], config: Config | None) -> Report:
    """The numbers of report.json. config: the run's settings, for the prices; None leaves the cost out."""
    story = story_of(records)
    end = next((record for record in reversed(records) if isinstance(record, End)), None)
    if end and story.runs and story.runs[-1].t_s > end.t_s:
        end = None  # a resume went on after that end
    first_run = story.runs[0] if story.runs else None
    account = account_of(records, config.prices) if config else None
    last_sample = story.samples[-1] if story.samples else None
    planned = story.runs[-1].steps if story.runs else len(story.steps)
    expected = config is not None and config.fleet.n_prem_max > 0
    instances = instances_of(story.firsts, story.samples, len(story.steps)) if expected else None
    verdicts = verdicts_of(end, story.samples)
    return Report(
        run_id=first_run.run_id if first_run else "",
        seed=first_run.seed if first_run else 0,
        finished=end is not None,
        ok=end.ok if end else None,
        violations=end.violations if end else [],
        unchecked=end.unchecked if end else 0,
        steps=len(story.steps),
        steps_planned=planned,
        wall_s=round(story.end_s, 3),
        reward=reward_of(story.evals, [step.reward for step in story.steps]),
        tokens=Tokens(
            collected=end.tokens_collected if end else last_sample.tokens_collected if last_sample else 0,
            lost=end.tokens_lost if end else None,
            generated_twice=end.tokens_generated_twice if end else None,
        ),
        requests=Requests(
            migrated=end.requests_migrated if end else last_sample.migrations if last_sample else 0,
            moved=last_sample.moves if last_sample else 0,
        ),
        preemptions=preemptions_of(story.nodes),
        resumes=max(0, len(story.runs) - 1),
        restarts=restarts_of(records),
        cost=cost_of(account, config) if config and account else None,
        account=account,
        weights=weights_of(story.samples),
        instances=instances,
        outcome=outcome_of(end, story.evals, instances, len(story.steps), planned, verdicts),
        step_times=step_times(story.steps, story.restarts),
        critical_path=stage_times(story.paths),
        scoring=scoring_time(story.paths),
        verdicts=verdicts,
    )


def weights_of(samples: Sequence[Sample]) -> WeightsPulled | None:
    """Sums over the lives of the manager, each of which counts from 0; None where nothing was pulled."""
    sums: Counter[str] = Counter()
    before: dict[str, int] = {}
    for sample in samples:
        restarted = any(sample.weights.get(name, 0) < count for name, count in before.items())
        for name, count in sample.weights.items():
            sums[name] += count if restarted else count - before.get(name, 0)
        before = sample.weights
    if not sums:
        return None
    return WeightsPulled(
        delta_versions=sums["delta_versions"],
        delta_bytes=sums["delta_bytes"],
        whole_versions=sums["whole_versions"],
        whole_bytes=sums["whole_bytes"],
        image_bytes=sums["image_bytes"],
    )


def preemptions_of(nodes: Sequence[Node]) -> Preemptions:
    """Count the preemptions; a host that was killed after its notice counts as noticed; a host whose notice
    was withdrawn does not."""
    noticed: set[str] = set()
    killed = notices = 0
    for record in nodes:
        if record.role != PREEMPTIBLE:
            continue
        if record.event == "joined":
            noticed.discard(record.node)
        elif record.event == "noticed":
            notices += record.node not in noticed
            noticed.add(record.node)
        elif record.event == "spared":
            notices -= record.node in noticed
            noticed.discard(record.node)
        elif record.event == "killed":
            killed += record.node not in noticed
    return Preemptions(killed=killed, noticed=notices)


def restarts_of(records: Sequence[AnyRecord]) -> list[RestartCount]:
    """Restarts by actor and cause, the most frequent first."""
    counts = Counter((record.actor, record.cause) for record in records if isinstance(record, Restart))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [RestartCount(actor=actor, cause=cause, count=count) for (actor, cause), count in ordered]


def cost_of(account: Account, config: Config) -> Cost:
    """The account in the format of the first reports."""
    hours = account.reserved.host_hours + account.preemptible.host_hours
    return Cost(
        currency=account.currency,
        reserved=round(account.reserved.cost, 6),
        preemptible=round(account.preemptible.cost, 6),
        total=round(account.cost, 6),
        reserved_hours=round(account.reserved.host_hours, 6),
        preemptible_hours=round(account.preemptible.host_hours, 6),
        at_reserved_price=round(hours * config.prices.reserved_per_hour, 6),
    )
