"""Mutation score: the share of a sample of mutants that campaign and unit tests notice.

Owns the run: a mutant first goes through seeds of a campaign, then through the unit tests of its package,
until one of them fails. `mutants` makes the mutants, `mutation_results` keeps the results. Run in a checkout:

    python -m gleaner.chaos.mutation_score --sample 40 --write
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

from gleaner.chaos import mutation_results
from gleaner.chaos.mutants import Mutant, all_mutants, edits_of
from gleaner.chaos.mutate import compiled
from gleaner.chaos.mutation_results import MutantResult
from gleaner.chaos.plan import load, parse_seeds
from gleaner.chaos.run_orders import RunOrder
from gleaner.chaos.workers import run_all

CHECKOUT = Path(__file__).resolve().parent.parent
MUTANT = "GLEANER_MUTANT"
"""Variable with the name of the mutant, for tests/mutant_plugin.py."""
MARKS = "not realprocess and not alone and not engines and not vllm and not verl and not long"
RUN_S = 40.0
"""Processor seconds of a simulated run, ten times what one takes: a mutant that never ends is noticed."""
TESTS_S = 420.0
"""Seconds of the unit tests of one package; a mutant that hangs them is noticed."""
PASSED, FAILED = 0, 1  # of pytest


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


async def noticed_by_campaign(mutant: Mutant, campaign: str, seeds: Sequence[int]) -> str:
    """The first seed and check that notice it; "" for none."""

    def orders() -> Iterator[RunOrder]:
        return (RunOrder(campaign=campaign, seed=seed, stop_at="") for seed in seeds)

    compiled(edits_of(mutant.name))  # a worker that ends for that would pass as a violation
    answers = run_all(orders(), count=1, run_s=RUN_S, mutation=mutant.name)
    async with aclosing(answers):
        async for result in answers:
            if result.broken:
                return f"{campaign} seed {result.seed}: {result.broken[0].check}"
    return ""


def noticed_by_tests(mutant: Mutant) -> str:
    """The first test that notices it; "" for none. Raises RuntimeError where the tests cannot run."""
    folder = Path("tests", *mutant.package.split(".")[1:])
    command = [
        sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "tests.mutant_plugin",
        "-p", "no:cacheprovider", "-m", MARKS, str(folder),
    ]  # fmt: skip
    environment = {**os.environ, MUTANT: mutant.name}
    try:
        done = subprocess.run(
            command,
            cwd=CHECKOUT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TESTS_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{folder}: no end"
    if done.returncode == PASSED:
        return ""
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if failed:
        return failed[0]
    if done.returncode == FAILED or "ImportError while loading conftest" in done.stderr:
        return f"{folder}: cannot be imported"
    raise RuntimeError(f"{mutant.name}: pytest ended with {done.returncode}: {done.stderr[-500:]}")


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
    results = []
    for mutant in chosen:
        began_s = time.monotonic()
        by = asyncio.run(noticed_by_campaign(mutant, args.campaign, seeds))
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
