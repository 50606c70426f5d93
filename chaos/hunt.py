"""Hunts the planted bugs: runs a campaign on each until a check notices, and tells after how many seeds.

Owns the hunt and its table (docs/reliability.md). `python -m chaos.hunt [NAME ...]` runs it.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from chaos.mutations import BY_NAME, MUTATIONS, Mutation
from chaos.orders import Order
from chaos.plan import Loaded, load
from chaos.schedule import Schedule
from chaos.workers import run_all

CAMPAIGN = "hunt"
SEEDS = 40
"""Seeds until a bug counts as not caught."""


@dataclass(frozen=True, slots=True)
class Caught:
    """What a hunt found. seeds: how many were run until then, the failing one included; check: "" where
    nothing noticed."""

    name: str
    safeguard: str
    seeds: int
    check: str = ""
    text: str = ""


async def hunt(mutation: Mutation, *, workers: int, seeds: int = SEEDS, campaign: str = CAMPAIGN) -> Caught:
    """Run seeds with the bug planted, in order, until one is broken."""
    loaded = load(campaign)
    orders = [
        Order(campaign=campaign, seed=seed, schedule=_focused(loaded, seed, mutation))
        for seed in range(seeds)
    ]
    answers = run_all(orders, count=workers, run_s=loaded.campaign.run_s, mutation=mutation.name)
    done = 0
    async with aclosing(answers):
        async for told in answers:
            done += 1
            if told.broken:
                found = told.broken[0]
                return Caught(mutation.name, mutation.safeguard, done, found.check, found.text)
    return Caught(mutation.name, mutation.safeguard, done)


def _focused(loaded: Loaded, seed: int, mutation: Mutation) -> Schedule | None:
    """A schedule of the faults that lead to this bug; None: what the campaign draws."""
    if not mutation.faults:
        return None
    options = msgspec.structs.replace(
        loaded.campaign.options, kinds=mutation.faults, share_on=1.0, calm=0.0, trace_share=0.0
    )
    narrowed = msgspec.structs.replace(loaded.campaign, options=options)
    return msgspec.structs.replace(loaded, campaign=narrowed).schedule(seed)


def table(caught: Sequence[Caught]) -> str:
    """As Markdown."""
    rows = [
        "| planted bug | safeguard that it takes out | caught by | seeds until caught |",
        "|---|---|---|---|",
    ]
    for it in caught:
        found = (it.check, str(it.seeds)) if it.check else ("**nothing**", f"none in {it.seeds}")
        rows.append(f"| {it.name} | {it.safeguard} | {found[0]} | {found[1]} |")
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Hunt the named bugs, or all; 1 where one was not caught."""
    parser = argparse.ArgumentParser(prog="python -m chaos.hunt", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"planted bugs: {', '.join(BY_NAME)}")
    parser.add_argument("--workers", type=int, default=1, help="processes side by side (default: 1)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"seeds for each (default: {SEEDS})")
    args = parser.parse_args(argv)
    unknown = [name for name in args.names if name not in BY_NAME]
    if unknown:
        parser.error(f"there is no planted bug {unknown[0]!r}; there are {', '.join(BY_NAME)}")
    found = []
    for mutation in [BY_NAME[name] for name in args.names] or MUTATIONS:
        caught = asyncio.run(hunt(mutation, workers=args.workers, seeds=args.seeds))
        sys.stderr.write(
            f"{caught.name}: {caught.check or 'not caught'} after {caught.seeds}: {caught.text}\n"
        )
        found.append(caught)
    say(table(found))
    return 0 if all(it.check for it in found) else 1


if __name__ == "__main__":
    sys.exit(main())
