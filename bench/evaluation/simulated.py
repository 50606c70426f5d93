"""Simulated cell: runs one, and extracts the data of tables and plots.

Owns how long a cell runs, and the shape of its result.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from bench.evaluation import scenarios
from bench.evaluation.cells import SEGMENT_S, Cell
from bench.evaluation.setups import Around, setting
from gleaner.actors.training.records import AnyRecord, Step
from gleaner.configs.load import dump
from gleaner.rlctl.report.model import PREEMPTIBLE, Story, story_of
from gleaner.rlctl.round_table import PeriodRow, RoundRow, round_table
from gleaner.rlctl.what_if import begin_of, in_model_tokens
from gleaner.sim.cluster import SimCluster
from gleaner.sim.run_setup import RunSetup

PIECE_S = 30.0  # virtual, between two checks whether it is over
MOST_S = 50_000.0  # virtual: no cell takes as long
LONG_S = {"segment": SEGMENT_S, "wave": scenarios.WAVE_S + scenarios.WAVE_EVERY_S * (scenarios.WAVE_GONE + 2)}
"""From the first step's start, for cells without a number of steps: until a step ends that late."""
ROOT = Path(__file__).resolve().parents[2]
CODE = ("transport", "supervisor", "configs", "actors", "nodeagent", "sim")
"""Packages that run in a simulated cluster, beside the modules of this folder that define the run."""


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """One step; seconds from the first step's start, tokens of the model. hosts: preemptible ones that were
    up in it, the mean over its time; t_seed_s, n_prem: chosen for the next one. reward: mean of `samples`."""

    step: int
    begin_s: float
    step_s: float
    seeding_s: float
    waiting_s: float
    training_s: float
    weights_s: float
    tokens: int
    t_seed_s: float
    n_prem: int
    hosts: float
    samples: int = 0
    reward: float | None = None


class Look(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The fleet at a moment: preemptible hosts, instances that serve, tokens generated a second."""

    t_s: float
    hosts: int
    serving: int
    tokens_per_s: float


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a cell. ended: "done", or "cut" where the segment was over; anything else is a failure.
    migrations: dispatches of a request after its first one. rounds, periods: of a job with rounds."""

    cell: Cell
    settings: str
    code: str
    ended: str
    reason: str
    cpu_s: float
    virtual_s: float
    trace_hash: str
    migrations: int
    killed: int
    steps: list[StepLine]
    looks: list[Look]
    rounds: list[RoundRow] = []
    periods: list[PeriodRow] = []

    @property
    def ok(self) -> bool:
        return self.ended in ("done", "cut") and bool(self.steps)

    @property
    def tokens_per_s(self) -> float:
        """Tokens that were generated and trained, by the time of all steps."""
        return sum(step.tokens for step in self.steps) / self.seconds

    @property
    def seconds(self) -> float:
        """Time from the first step's start to the last one's end."""
        return self.steps[-1].begin_s + self.steps[-1].step_s - self.steps[0].begin_s

    @property
    def hosts(self) -> float:
        """Preemptible hosts that were up, the mean over that time."""
        return sum(step.hosts * step.step_s for step in self.steps) / sum(s.step_s for s in self.steps)


def settings_hash(cell: Cell, made: RunSetup) -> str:
    """Changes with the code of the simulated cluster."""
    trace = [(event.t_s, event.event, event.instance) for event in made.trace.events] if made.trace else None
    job_model = {key: repr(value) for key, value in vars(made.job_model).items() if key != "pool"}
    rigs = [asdict(made.reserved), asdict(made.preemptible)]
    around = [repr(made.link), made.egress_bytes_s, made.preemptible_bytes_s, repr(made.paces), made.seed]
    parts = [cell, dump(made.config), trace, job_model, rigs, repr(made.reserved.assumptions), around]
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()


def code_hash() -> str:
    """Changes with the code that determines a cell's result."""
    digest = hashlib.blake2b(digest_size=8)
    files = [
        file for folder in CODE for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".toml")
    ]
    files += [
        Path(__file__),
        *(Path(__file__).with_name(f"{room}.py") for room in ("setups", "scenarios", "segments")),
        Path(__file__).parent / "rollpacker" / "setups.py",
    ]
    for file in sorted(files):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def simulate(cell: Cell, around: Around, code: str) -> CellResult:
    """Run it. A segment is run to the end of the first step that ends after it."""
    made = setting(cell, around)
    settings = settings_hash(cell, made)
    began_s = time.process_time()
    cluster = SimCluster(made)
    cluster.begin()
    over = cut = False
    while not (over or cut) and cluster.loop.now_s < MOST_S:
        over = cluster.advance(cluster.loop.now_s + PIECE_S)
        cut = not cell.steps and lasted(cluster.history) >= LONG_S[cell.kind]
    outcome = cluster.finish(stopped=not over)
    records = in_model_tokens(outcome.history, made.job_model.token_scale)
    story, rounds = story_of(records), round_table(cell.name, records)
    return CellResult(
        cell=cell,
        settings=settings,
        code=code,
        ended="cut" if cut else outcome.ended,
        reason="" if cut else outcome.reason,
        cpu_s=time.process_time() - began_s,
        virtual_s=outcome.virtual_s,
        trace_hash=outcome.trace_hash,
        migrations=story.samples[-1].migrations if story.samples else 0,
        killed=sum(node.event == "killed" and node.role == PREEMPTIBLE for node in story.nodes),
        steps=_lines(story),
        looks=_looks(story),
        rounds=rounds.rounds,
        periods=rounds.periods,
    )


def lasted(records: Sequence[AnyRecord]) -> float:
    """Seconds from the first step's start to the last one's end."""
    steps = [record for record in records if isinstance(record, Step)]
    return steps[-1].t_s - (steps[0].t_s - steps[0].step_s) if steps else 0.0


def _lines(story: Story) -> list[StepLine]:
    begin_s = begin_of(story)
    return [
        StepLine(
            step=step.step,
            begin_s=step.t_s - step.step_s - begin_s,
            step_s=step.step_s,
            seeding_s=step.seeding_s,
            waiting_s=step.waiting_s,
            training_s=step.training_s,
            weights_s=step.weights_s,
            tokens=step.tokens,
            t_seed_s=step.t_seed_s,
            n_prem=step.n_prem,
            hosts=_hosts(story, step.t_s - step.step_s, step.t_s),
            samples=step.samples,
            reward=step.reward,
        )
        for step in story.steps
    ]


def _hosts(story: Story, from_s: float, to_s: float) -> float:
    stays = (life for life in story.lives if life.role == PREEMPTIBLE)
    up_s = sum(max(0.0, min(life.to_s, to_s) - max(life.from_s, from_s)) for life in stays)
    return up_s / (to_s - from_s) if to_s > from_s else 0.0


def _looks(story: Story) -> list[Look]:
    """The samples of the fleet from the first step on."""
    begin_s = begin_of(story)
    return [
        Look(
            t_s=round(look.t_s - begin_s, 1),
            hosts=look.preemptible,
            serving=look.serving,
            tokens_per_s=round(look.tokens_per_s, 1),
        )
        for look in story.samples
        if look.t_s >= begin_s and story.steps
    ]
