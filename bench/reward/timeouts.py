"""Adaptive timeouts: RollPacker's figure 13c on modelled rounds of programs.

    python -m bench.reward.timeouts                  all, on one core: some minutes
    python -m bench.reward.timeouts --seeds 2        less of it
    python -m bench.reward.timeouts --write-docs     and into docs/evaluation.md

The timeouts are production's (`gleaner.actors.reward.timeouts`), the rounds are drawn from laws
(`gleaner.sim.rewards.code_rounds`). The paper gives neither the number of reward workers, nor how often its
programs were right, nor what their tests took: each is shown over a sweep, and none is tuned.
"""

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bench.page_sections import put
from bench.reward.planning import PAGE, Sample, table
from gleaner.actors.reward.timeouts import AdaptiveTimeouts
from gleaner.configs.schema import Timeouts
from gleaner.sim.rewards.code_rounds import RoundLaw, Workers, rounds

WORKERS = (16, 32, 64, 128, 256)
USUAL = 64
ROUNDS = 20
SETTINGS = Timeouts()
LAW = RoundLaw()


@dataclass
class Cell:
    """One workload and number of workers over seeds."""

    fixed_s: Sample = field(default_factory=Sample)
    adaptive_s: Sample = field(default_factory=Sample)
    ratio: Sample = field(default_factory=Sample)
    rollout_s: Sample = field(default_factory=Sample)
    right_cut: Sample = field(default_factory=Sample)

    def row(self, *names: str) -> Sequence[str]:
        """Of a table."""
        figures = (self.rollout_s, self.fixed_s, self.adaptive_s, self.ratio, self.right_cut)
        return (*names, *map(str, figures))


HEAD = ("rollout, s", "fixed, s", "adaptive, s", "fixed / adaptive", "right ones cut, %")


@dataclass(frozen=True)
class Case:
    """What is assumed. known: each problem has an anchor from the beginning."""

    law: RoundLaw = LAW
    settings: Timeouts = SETTINGS
    known: bool = False


def cell(case: Case, workers: int, seeds: Iterable[int], count: int = ROUNDS) -> Cell:
    """Mean time of a round (rollout and rewards) with a timeout of `max_s`, and with adaptive ones."""
    found = Cell()
    for seed in seeds:
        drawn = list(rounds(case.law, count, seed))
        timeouts = AdaptiveTimeouts(case.settings, random.Random(seed))
        if case.known:
            each = (program for one in drawn for program in one.programs)
            timeouts.restore((one.problem, (one.takes_s,)) for one in each if math.isfinite(one.takes_s))
        fixed = Workers(workers, case.settings.max_s)
        adaptive = Workers(workers, case.settings.max_s, timeouts)
        for one in drawn:
            fixed.score(one)
            adaptive.score(one)
        fixed_s, adaptive_s = (statistics.fmean(way.scored.complete_s) for way in (fixed, adaptive))
        found.fixed_s.values.append(fixed_s)
        found.adaptive_s.values.append(adaptive_s)
        found.ratio.values.append(fixed_s / adaptive_s)
        found.rollout_s.values.append(statistics.fmean(one.rollout_s for one in drawn))
        found.right_cut.values.append(100 * adaptive.scored.right_cut / adaptive.scored.right)
    return found


def cases() -> dict[str, Case]:
    """What the paper does not give, one thing changed at a time."""
    return {
        "as above": Case(),
        "each problem has an anchor from the beginning": Case(known=True),
        "each problem returns about every fifth round": Case(RoundLaw(problems=5 * LAW.prompts)),
        "a quarter of the programs right": Case(RoundLaw(right=0.25)),
        "three quarters right": Case(RoundLaw(right=0.75)),
        "tests of 0.1 s": Case(RoundLaw(test_s=0.1)),
        "tests of 2 s": Case(RoundLaw(test_s=2.0)),
        "2 % do not end": Case(RoundLaw(runaways=0.02)),
        "10 % do not end": Case(RoundLaw(runaways=0.1)),
        "responses twice as long": Case(RoundLaw(median_tokens=3000.0)),
        "factor 1": Case(settings=Timeouts(factor=1.0)),
        "factor 3": Case(settings=Timeouts(factor=3.0)),
        "no audit": Case(settings=Timeouts(audit_share=0.0)),
    }


def text(seeds: int, say: Callable[[str], object]) -> str:
    """The section of the page."""
    drawn = range(1, seeds + 1)
    over_workers = []
    for workers in WORKERS:
        over_workers.append(cell(Case(), workers, drawn).row(f"{workers}"))
        say(f"{workers} workers")
    swept = []
    for name, case in cases().items():
        swept.append(cell(case, USUAL, drawn).row(name))
        say(name)
    return "\n\n".join(
        [
            f"`python -m bench.reward.timeouts --seeds {seeds}` writes this; ± is half of the 95 % interval "
            f"of the mean over seeds 1 to {seeds}, {ROUNDS} rounds each. Seconds: the mean time of a round, "
            "until each response that it trains on has its verdict.",
            "**Fixed 30 s against adaptive** (figure 13c), 5 % of the programs do not end. Paper: 1.6x.",
            table(("workers", *HEAD), over_workers),
            f"The same with {USUAL} workers, one assumption changed at a time:",
            table(("", *HEAD), swept),
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.reward.timeouts", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 1 on (5)")
    parser.add_argument("--write-docs", action="store_true", help="write the section of docs/evaluation.md")
    args = parser.parse_args(argv)
    if args.seeds < 1:
        parser.error("expected 1 seed at least")
    section = text(args.seeds, lambda part: print(f"{part}: done", file=sys.stderr))
    print(section)
    if args.write_docs:
        put(PAGE, "reward timeouts", section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
