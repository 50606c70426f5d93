"""What-if runs: a job on modelled machines, beside a co-located baseline.

The baseline has no preemptible hosts. Owns the order of the two runs, the progress with the time left, and a
user's stop, which keeps the results so far. `what_if` computes the figures, `simulate_page` makes the page.
"""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType

import msgspec

from gleaner.actors.training.records import AnyRecord, Sample, Step
from gleaner.configs.schema import Config
from gleaner.rlctl.what_if import Figures, figures_of, in_model_tokens
from gleaner.sim.cluster import SimCluster
from gleaner.sim.loop import SpinsForever
from gleaner.sim.outcome import Outcome
from gleaner.sim.run_setup import RunSetup

PIECE_WALL_S = 0.25
"""Wall seconds of one piece: the longest wait for a Ctrl-C, and between two updates."""
FIRST_PIECE_S = 1.0  # virtual; the next ones follow from the measured speed
FASTER, SLOWER = 2.0, 0.5
LEAST_SHARE = 0.1  # of the first step, before the time left is shown


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress", tag_field="kind"):
    """Progress of the `number`-th of `runs`. virtual_s: seconds of the cluster; wall_s: wall seconds for
    them; left_s: wall seconds to the end of this run, None while too little of it is done for an estimate."""

    run: str
    number: int
    runs: int
    step: int
    steps: int
    virtual_s: float
    wall_s: float
    left_s: float | None


@dataclass(frozen=True, slots=True)
class Simulated:
    """One run: its records, its history in tokens of the modelled model, and its figures."""

    name: str
    outcome: Outcome
    records: list[AnyRecord]
    figures: Figures


class Stop:
    """Set by the first Ctrl-C (or SIGTERM); the second one ends the process as usual."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals inside the block. Call it on the main thread."""

        def ask(_number: int, _frame: FrameType | None) -> None:
            self.asked = True
            for number in before:
                signal.signal(number, before[number])

        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            signal.signal(number, ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def baseline_of(setting: RunSetup) -> RunSetup:
    """The same job, seed and reserved host, with no other host: rollout on the training host alone."""
    tree = msgspec.to_builtins(setting.config)
    tree["fleet"] |= {"n_prem_max": 0, "trace": ""}
    return replace(setting, config=msgspec.convert(tree, Config), trace=None)


def simulate_all(
    settings: Mapping[str, RunSetup], stop: Stop, tell: Callable[[Progress], None]
) -> list[Simulated]:
    """Each run, in order; runs after a user's stop are left out."""
    done: list[Simulated] = []
    for number, (name, setting) in enumerate(settings.items(), 1):
        if not stop.asked:
            done.append(simulate(name, setting, stop, tell, number=number, runs=len(settings)))
    return done


def simulate(
    name: str,
    setting: RunSetup,
    stop: Stop,
    tell: Callable[[Progress], None],
    *,
    number: int = 1,
    runs: int = 1,
) -> Simulated:
    """One run, to its end, its virtual deadline, or the user's stop."""
    cluster = SimCluster(setting)
    began_s = time.perf_counter()
    cluster.begin()
    piece_s, over, defect = FIRST_PIECE_S, False, ""
    while not over and not stop.asked and not defect and cluster.loop.now_s < setting.deadline_s:
        piece_began_s = time.perf_counter()
        try:
            over = cluster.advance(min(cluster.loop.now_s + piece_s, setting.deadline_s))
        except SpinsForever as problem:
            defect = f"a defect of ours, please report it with these settings: {problem}"
        took_s = time.perf_counter() - piece_began_s
        piece_s *= FASTER if took_s < PIECE_WALL_S / 2 else SLOWER if took_s > PIECE_WALL_S * 2 else 1.0
        tell(progress_of(name, cluster, time.perf_counter() - began_s, number, runs))
    outcome = cluster.finish(stopped=bool(defect) or (stop.asked and not over))
    if defect:
        outcome = replace(outcome, ended="failed", reason=defect)
    records = in_model_tokens(outcome.history, setting.job_model.token_scale)
    return Simulated(name, outcome, records, figures_of(records, setting.config))


def share_of_first_step(cluster: SimCluster) -> float:
    """Finished share of the first step's responses, and of the evaluation's before it; at most 1."""
    setting = cluster.setting
    looks = [record for record in cluster.history if isinstance(record, Sample)]
    config, scale = setting.config, setting.job_model.token_scale
    requests = config.rollout.prompts * config.rollout.samples + config.heldout_problems
    tokens = requests * setting.job_model.law.mean(config.rollout.max_new_tokens * scale) / scale
    return min(looks[-1].tokens_collected / tokens, 1.0) if looks else 0.0


def progress_of(name: str, cluster: SimCluster, wall_s: float, number: int = 1, runs: int = 1) -> Progress:
    """Progress. The time left follows from the steps that have ended; in the first step, from its responses
    so far."""
    ended = [record for record in cluster.history if isinstance(record, Step)]
    steps, now_s = cluster.setting.config.job.steps, cluster.loop.now_s
    left_s = None
    if ended and now_s > 0:
        step_s = sum(step.step_s for step in ended) / len(ended)
        virtual_left_s = (steps - len(ended)) * step_s - (now_s - ended[-1].t_s)
        left_s = max(virtual_left_s, 0.0) * wall_s / now_s
    elif (share := share_of_first_step(cluster)) >= LEAST_SHARE:
        left_s = (steps / share - 1.0) * wall_s
    return Progress(
        run=name,
        number=number,
        runs=runs,
        step=len(ended),
        steps=steps,
        virtual_s=now_s,
        wall_s=wall_s,
        left_s=left_s,
    )
