"""Hunts planted bugs: runs a campaign on each until a check catches it.

Reports the number of seeds. Owns the hunt. `python -m gleaner.chaos.hunt [NAME ...]` runs it; with `--write`
it keeps the results (`hunt_results`).
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing

import msgspec

from gleaner.chaos import hunt_results
from gleaner.chaos.guided_schedules import lead
from gleaner.chaos.hunt_results import HuntResult
from gleaner.chaos.mutate import compiled
from gleaner.chaos.mutations import BY_NAME, MUTATIONS, Mutation
from gleaner.chaos.plan import Loaded, load
from gleaner.chaos.run_orders import RunOrder
from gleaner.chaos.schedule import Schedule
from gleaner.chaos.tally import RunReport
from gleaner.chaos.workers import run_all

SEEDS = 40
"""Seeds after which a bug counts as not caught."""


async def hunt(
    mutation: Mutation, *, workers: int = 1, first: int = 0, seeds: int = SEEDS, check: str = ""
) -> HuntResult:
    """Run seeds with the bug planted, in order from `first` on, until one is broken; with `check`, or where
    the bug names one check alone, until that one notices. Raises CannotPlant: a worker that ends for that
    would pass as a violation."""
    compiled(mutation.edits)
    if not check and len(mutation.caught_by) == 1:
        (check,) = mutation.caught_by
    loaded = load(mutation.campaign)
    answers = run_all(
        orders(loaded, mutation, range(first, first + seeds), check),
        count=workers,
        run_s=loaded.campaign.run_s,
        mutation=mutation.name,
    )
    done = 0
    async with aclosing(answers):
        async for result in answers:
            done += 1
            noticed = [found for found in result.broken if check in ("", found.check)]
            if noticed:
                # the end of a failed job also gives violations for parts that can no longer be checked
                found = min(noticed, key=lambda it: it.check not in mutation.caught_by)
                return HuntResult(
                    name=mutation.name, seeds=done, check=found.check, seed=result.seed,
                    at_s=round(found.at_s, 3), text=found.text,
                )  # fmt: skip
    return HuntResult(name=mutation.name, seeds=done)


def orders(loaded: Loaded, mutation: Mutation, seeds: Sequence[int], check: str = "") -> Iterator[RunOrder]:
    """The runs in which this bug is hunted, until that check notices it, or any does. They
    must be clean without the bug."""
    for seed in seeds:
        yield RunOrder(
            campaign=mutation.campaign, seed=seed, schedule=focused(loaded, seed, mutation), stop_at=check
        )


def focused(loaded: Loaded, seed: int, mutation: Mutation) -> Schedule:
    """A schedule of the faults that lead to this bug; where it names none, the campaign's draw."""
    if mutation.lead:
        return lead(mutation.lead, seed)
    if not mutation.faults:
        return loaded.schedule(seed)
    options = msgspec.structs.replace(
        loaded.campaign.options, kinds=mutation.faults, share_on=1.0, calm=0.0, trace_share=0.0
    )
    narrowed = msgspec.structs.replace(loaded.campaign, options=options)
    return msgspec.structs.replace(loaded, campaign=narrowed).schedule(seed)


async def control(mutation: Mutation, seeds: Sequence[int], *, workers: int = 1) -> list[RunReport]:
    """The same runs without the bug."""
    loaded = load(mutation.campaign)
    answers = run_all(orders(loaded, mutation, seeds), count=workers, run_s=loaded.campaign.run_s)
    async with aclosing(answers):
        return [result async for result in answers]


def main(argv: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Hunt the named bugs, or all; 1 where one was not caught, or a seed is broken without any bug."""
    parser = argparse.ArgumentParser(prog="python -m gleaner.chaos.hunt", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"planted bugs: {', '.join(BY_NAME)}")
    parser.add_argument("--workers", type=int, default=1, help="parallel processes (default: 1)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"seeds for each (default: {SEEDS})")
    parser.add_argument("--control", action="store_true", help="run each catching seed without the bug too")
    parser.add_argument(
        "--write", action="store_true", help=f"write the results to {hunt_results.TABLE.name} and the page"
    )
    args = parser.parse_args(argv)
    unknown = [name for name in args.names if name not in BY_NAME]
    if unknown:
        parser.error(f"there is no planted bug {unknown[0]!r}; there are {', '.join(BY_NAME)}")
    found, ill = {}, 0
    for mutation in [BY_NAME[name] for name in args.names] or MUTATIONS:
        it = found[mutation.name] = asyncio.run(hunt(mutation, workers=args.workers, seeds=args.seeds))
        sys.stderr.write(f"{it.name}: {it.check or 'not caught'} after {it.seeds}, {it.at_s} s: {it.text}\n")
        if it.check and args.control:
            for result in asyncio.run(control(mutation, [it.seed])):
                for broken in result.broken:
                    ill += 1
                    sys.stderr.write(f"  seed {result.seed} without it: {broken.check}: {broken.text}\n")
        if args.write:
            known = hunt_results.write([it])
            page = hunt_results.PAGE.read_text(encoding="utf-8")
            hunt_results.PAGE.write_text(
                hunt_results.put_in(page, hunt_results.table(known)), encoding="utf-8"
            )
    say(hunt_results.table(found, [BY_NAME[name] for name in found]))
    return 0 if not ill and all(it.check for it in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
