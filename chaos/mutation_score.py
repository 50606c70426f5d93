"""Mutation score: the share of a sample of mutants that campaign and unit tests notice.

Owns the run: a mutant first goes through seeds of a campaign, then through the unit tests of its package,
until one of them fails. `mutants` makes the mutants, `mutation_results` keeps the results. Run in a checkout:

    python -m gleaner.chaos.mutation_score --sample 40 --write
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

from gleaner.chaos import mutation_results
from gleaner.chaos.mutant_tests import noticed_by_tests
from gleaner.chaos.mutants import Mutant, all_mutants, edits_of
from gleaner.chaos.mutate import compiled
from gleaner.chaos.mutation_results import MutantResult
from gleaner.chaos.plan import load, parse_seeds
from gleaner.chaos.run_orders import RunOrder
from gleaner.chaos.workers import run_all

CHECKOUT = Path(__file__).resolve().parent.parent
RUN_S = 40.0
"""Processor seconds of a simulated run, ten times what one takes: a mutant that never ends is noticed."""


def drawn(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """A sample with equally many of each package, as far as they go."""
    rng = random.Random(seed)
    by_package: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_package.setdefault(mutant.package, []).append(mutant)
    for of_package in by_package.values():
        rng.shuffle(of_package)
    found: list[Mutant] = []
    while len(found) < count and any(by_package.values()):
        for of_package in by_package.values():
            if of_package and len(found) < count:
                found.append(of_package.pop())
    return found


async def noticed_by_campaign(mutant: str, campaign: str, seeds: Sequence[int]) -> str:
    """The first seed and check that notice the mutant of that name; "" for none, and for no mutant ("")."""

    def orders() -> Iterator[RunOrder]:
        return (RunOrder(campaign=campaign, seed=seed, stop_at="") for seed in seeds)

    if mutant:
        compiled(edits_of(mutant))  # a worker that ends for that would pass as a violation
    answers = run_all(orders(), count=1, run_s=RUN_S, mutation=mutant)
    async with aclosing(answers):
        async for result in answers:
            if result.broken:
                return f"{campaign} seed {result.seed}: {result.broken[0].check}"
    return ""


def main(argv: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Score a sample, or the named mutants."""
    parser = argparse.ArgumentParser(prog="python -m gleaner.chaos.mutation_score", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MUTANT", help="these mutants instead of a sample")
    parser.add_argument("--sample", type=int, default=40, help="mutants (default: 40)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: 1)")
    parser.add_argument("--campaign", default="ci", help="default: ci")
    parser.add_argument("--seeds", default="0:8", metavar="A:B", help="of the campaign (default: 0:8)")
    parser.add_argument("--no-tests", action="store_true", help="the campaign alone")
    parser.add_argument("--write", action="store_true", help="keep the results, and write them to the page")
    args = parser.parse_args(argv)
    load(args.campaign)
    seeds = list(parse_seeds(args.seeds))
    mutants = all_mutants(CHECKOUT)
    chosen = drawn(mutants, args.sample, args.seed)
    if args.names:
        chosen = [mutant for mutant in mutants if mutant.name in args.names]
    if by := asyncio.run(noticed_by_campaign("", args.campaign, seeds)):
        raise RuntimeError(f"{by}, without a mutant: what a mutant breaks there proves nothing")
    results = []
    for mutant in chosen:
        began_s = time.monotonic()
        by = asyncio.run(noticed_by_campaign(mutant.name, args.campaign, seeds))
        if not by and not args.no_tests:
            by = noticed_by_tests(mutant)
        result = MutantResult(
            name=mutant.name, old=mutant.old, new=mutant.new, noticed_by=by, sample=args.seed
        )
        results.append(result)
        spent_s = time.monotonic() - began_s
        sys.stderr.write(
            f"{len(results)}/{len(chosen)} {mutant.name}: {by or 'SURVIVES'} ({spent_s:.0f} s)\n"
        )
        if args.write:
            mutation_results.write([result])
    if args.write:
        mutation_results.write_page()
    say(mutation_results.table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
