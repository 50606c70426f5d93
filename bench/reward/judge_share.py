"""A judge's GPU: how much of it one job uses, and what jobs that share it wait (RollPacker, figure 7b).

    python -m bench.reward.judge_share --seeds 5
    python -m bench.reward.judge_share --seeds 5 --write-docs    and into docs/evaluation.md

RollPacker's 14B job has 32 GPUs, a quarter of them for its judge of 7B (the paper's section 4.3). Responses
end as the simulator's engines decode them on the others under an even load, and go to the judge's GPUs in
turn. Each batches continuously: it reads prompt and response and writes its judgement. What the paper does
not give, such as the length of a judgement, is swept. Jobs do not slow down: by how much a judgement is too
late is counted, and moves no later response.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from bench.evaluation.cells import Cell
from bench.evaluation.rollpacker.known_lengths import batch
from bench.evaluation.rollpacker.setups import MODELS, PROMPT_TOKENS, setting
from bench.evaluation.rollpacker.wide_tail import Engines, Floats
from bench.page_sections import put
from bench.reward.planning import PAGE, Sample, table
from gleaner.sim.models.engine_cost import EngineCost, engine_cost
from gleaner.sim.models.host_devices import HostDevices

ACTOR, JUDGE = "14b-16k", "7b-8k"
HARD = 5
TRAINING_SHARE = 22 / 71
"""Training over rollout (the paper's table 1, judged task)."""
STEPS = 4
"""Of each job; the first and the last are not counted."""
RESERVED = 8
"""GPUs of the judge: a quarter of the job's."""
SHARED_BY = (1, 2, 4, 8)
FEWER = (4, 2, 1)
ANSWERS = (32, 128, 512)
ANSWER = 128
SLOTS = 256
STRIDE = 8
"""Tokens that the judge's requests get before it looks for new ones."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a judge's GPU did. done_s: of each item. busy: spans with requests [spans, begin and end]; row_s:
    seconds of requests in it."""

    done_s: Floats
    busy: Floats
    row_s: float


@dataclass(frozen=True, slots=True)
class Use:
    """Of a judge and its jobs: share of a GPU's time with any request; requests meanwhile; seconds from a
    response to its judgement; seconds by which the last judgement of a step is later than its rollout."""

    busy: float
    requests: float
    delay_s: float
    late_s: float


def cost_of(model: str) -> tuple[EngineCost, int]:
    """The engine of a model of `setups.MODELS`, and how many its job has."""
    made = MODELS[model]
    rig = setting(Cell(kind="colocated", model=model, variant="off", seed=1, steps=1))
    device = HostDevices("h100", made.tp, made.tp, rig.reserved.assumed)
    return engine_cost(rig.job_model.shape, device), made.devices // made.tp


def ends_s(engines: Engines, lengths: Floats) -> Floats:
    """Seconds from the begin of a rollout to the end of each response."""
    made, found, now_s = np.zeros_like(lengths), np.zeros_like(lengths), 0.0
    while (alive := made < lengths).any():
        took_s, made = engines.until(lengths, made, alive.sum() - 1)
        now_s += took_s
        found[alive & (made >= lengths)] = now_s
    return found


def judge(cost: EngineCost, arrivals_s: Floats, tokens: Floats, answer: int) -> Judged:
    """Judge items in the order of their arrival, which ascends. tokens: that are read of each."""
    done_s = np.zeros_like(arrivals_s)
    running: dict[int, int] = {}  # item: tokens that it still writes
    spans: list[tuple[float, float]] = []
    now_s, begun_s, row_s, following = 0.0, 0.0, 0.0, 0
    while running or following < len(arrivals_s):
        if not running:
            now_s = begun_s = max(now_s, float(arrivals_s[following]))
        before_s = now_s
        while following < len(arrivals_s) and arrivals_s[following] <= before_s and len(running) < SLOTS:
            read = float(tokens[following])
            now_s += cost.prefill(read, read**2 / 2)
            running[following] = answer
            following += 1
        count = min(STRIDE, *running.values())
        written = sum(answer - left for left in running.values())
        now_s += count * cost.decode(len(running), float(tokens[list(running)].sum()) + written)
        row_s += len(running) * (now_s - before_s)
        for item in list(running):
            running[item] -= count
            if not running[item]:
                done_s[item] = now_s
                del running[item]
        if not running:
            spans.append((begun_s, now_s))
    return Judged(done_s, np.array(spans), row_s)


@cache
def job(seed: int) -> tuple[tuple[Floats, Floats], ...]:
    """Steps of a job: when each response ends, from the begin of its rollout, and its length."""
    cost, count = cost_of(ACTOR)
    engines = Engines(cost, count - RESERVED // MODELS[ACTOR].tp)
    lengths = [batch(ACTOR, HARD, STEPS * seed + step).ravel() for step in range(STEPS)]
    return tuple((ends_s(engines, one), one) for one in lengths)


def use(seed: int, jobs: int, gpus: int, answer: int) -> Use:
    """So many jobs share a judge of so many GPUs; their steps begin evenly apart."""
    steps = [job(jobs * seed + number) for number in range(jobs)]
    rollout_s = [[float(ends.max()) for ends, _ in one] for one in steps]
    period_s = float(np.mean(rollout_s)) * (1 + TRAINING_SHARE)
    arrivals, read, step_of, over_s = [], [], [], list[float]()
    for number, one in enumerate(steps):
        begin_s = number * period_s / jobs
        for ends, lengths in one:
            arrivals.append(begin_s + ends)
            read.append(PROMPT_TOKENS + lengths)
            step_of.append(np.full(len(ends), len(over_s)))
            over_s.append(begin_s + float(ends.max()))
            begin_s += float(ends.max()) * (1 + TRAINING_SHARE)
    order = np.argsort(np.concatenate(arrivals), kind="stable")
    at_s, tokens, which = (np.concatenate(parts)[order] for parts in (arrivals, read, step_of))
    done_s, spans, row_s = np.zeros_like(at_s), [], 0.0
    for gpu in range(gpus):
        found = judge(cost_of(JUDGE)[0], at_s[gpu::gpus], tokens[gpu::gpus], answer)
        done_s[gpu::gpus] = found.done_s
        spans.append(found.busy)
        row_s += found.row_s
    counted = [step for step in range(len(over_s)) if 0 < step % STEPS < STEPS - 1]
    late_s = [max(0.0, float(done_s[which == step].max()) - over_s[step]) for step in counted]
    # whole periods in which every job has steps
    low_s, high_s = period_s, (STEPS - 1) * period_s
    busy = np.concatenate(spans)
    inside_s = float(np.diff(np.clip(busy, low_s, high_s)).sum())
    return Use(
        inside_s / (high_s - low_s) / gpus,
        row_s / float(np.diff(busy).sum()),
        float((done_s - at_s)[np.isin(which, counted)].mean()),
        float(np.mean(late_s)),
    )


def row(seeds: Iterable[int], jobs: int, gpus: int, answer: int) -> tuple[str, ...]:
    """A row of the table, over seeds."""
    uses = [use(seed, jobs, gpus, answer) for seed in seeds]
    columns = ([100 * one.busy for one in uses], [one.requests for one in uses],
               [one.delay_s for one in uses], [one.late_s for one in uses])  # fmt: skip
    return (str(jobs), str(gpus), str(answer), *(str(Sample(values)) for values in columns))


def text(seeds: int) -> str:
    """The section of the page."""
    drawn = range(1, seeds + 1)
    rows = [row(drawn, jobs, RESERVED, ANSWER) for jobs in SHARED_BY]
    rows += [row(drawn, 1, gpus, ANSWER) for gpus in FEWER]
    rows += [row(drawn, 1, RESERVED, answer) for answer in ANSWERS if answer != ANSWER]
    head = ("jobs", "GPUs of the judge", "tokens of a judgement", "time with requests, %",
            "requests meanwhile", "to a judgement, s", "last one after the rollout, s")  # fmt: skip
    return "\n\n".join(
        [
            f"`python -m bench.reward.judge_share --seeds {seeds}` writes this; ± is half of the 95 % "
            f"interval of the mean over {seeds} seeds.",
            table(head, rows),
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.reward.judge_share", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 1 on (5)")
    parser.add_argument("--write-docs", action="store_true", help="write the section of docs/evaluation.md")
    args = parser.parse_args(argv)
    if args.seeds < 1:
        parser.error("expected 1 seed at least")
    section = text(args.seeds)
    print(section)
    if args.write_docs:
        put(PAGE, "reward judge", section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
