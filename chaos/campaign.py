"""Campaign: every seed once, in parallel; failures are shrunk; a tally at the end.

Owns the order of work and the progress callbacks. `workers` runs the seeds, `tally` sums them up, the command
prints.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from gleaner.chaos.faults import AnyFault
from gleaner.chaos.plan import Loaded
from gleaner.chaos.run_orders import RunOrder
from gleaner.chaos.schedule import Schedule
from gleaner.chaos.shrink import shrink
from gleaner.chaos.tally import CampaignReport, RunReport, tally
from gleaner.chaos.workers import Worker, run_all

MAX_SHRUNK = 3
"""Failing seeds that are shrunk: more of them seldom add information, and each takes tens of runs."""
SHRINK_RUNS = 80


@dataclass(frozen=True, slots=True)
class Minimal:
    """A failing seed with the fewest faults that still break the same check. minimal: none can be dropped."""

    seed: int
    check: str
    schedule: Schedule
    runs: int
    minimal: bool


OnRun = Callable[[RunReport, int, int], None]
"""A run is over: its result, the number of finished runs, the total."""


async def campaign(
    loaded: Loaded, source: str, seeds: range, *, workers: int, on_run: OnRun, runs: list[RunReport]
) -> CampaignReport:
    """Run these seeds. source: the campaign's name or file, for the workers. `runs` holds the finished runs,
    also of a cancelled campaign."""
    began_s = time.monotonic()
    orders = [RunOrder(campaign=source, seed=seed, availability=loaded.availability) for seed in seeds]
    async with aclosing(run_all(orders, count=workers, run_s=loaded.campaign.run_s)) as answers:
        async for result in answers:
            runs.append(result)
            on_run(result, len(runs), len(seeds))
    return tally(loaded, span(seeds), runs, time.monotonic() - began_s)


def span(seeds: range) -> str:
    """Seeds in the form `A:B`."""
    return f"{seeds.start}:{seeds.stop}"


def minimal(loaded: Loaded, source: str, broken: RunReport, *, mutation: str = "") -> Minimal:
    """The fewest faults of a failing seed for which the same check still fails. Raises ValueError where it
    does not fail again: then the run is not a function of its seed, which is worse than any violation."""
    check = broken.broken[0].check
    drawn = loaded.schedule(broken.seed)
    worker = Worker(loaded.campaign.run_s, mutation)
    with asyncio.Runner() as runner:

        def fails(faults: Sequence[AnyFault]) -> bool:
            schedule = drawn.with_faults(faults)
            order = RunOrder(
                campaign=source,
                seed=broken.seed,
                schedule=schedule,
                stop_at=check,
                availability=loaded.availability,
            )
            result = runner.run(worker.ask(order))
            return any(found.check == check for found in result.broken)

        try:
            shrunk = shrink(drawn.faults, fails, max_questions=SHRINK_RUNS)
        finally:
            runner.run(worker.end())
    return Minimal(
        broken.seed, check, drawn.with_faults(shrunk.items), shrunk.questions, minimal=shrunk.minimal
    )


def first_broken(runs: Iterable[RunReport]) -> list[RunReport]:
    """Runs to shrink: the first of each check, by seed."""
    seen: dict[str, RunReport] = {}
    for run in sorted(runs, key=lambda it: it.seed):
        if run.broken:
            seen.setdefault(run.broken[0].check, run)
    return list(seen.values())[:MAX_SHRUNK]


def as_json(result: CampaignReport, shrunk: Sequence[Minimal]) -> bytes:
    """The tally as JSON, with the minimal schedules."""
    tree = msgspec.to_builtins(result)
    tree["minimal"] = [
        {
            "seed": found.seed,
            "check": found.check,
            "minimal": found.minimal,
            "runs": found.runs,
            "faults": msgspec.to_builtins(found.schedule.faults),
        }
        for found in shrunk
    ]
    return msgspec.json.format(msgspec.json.encode(tree), indent=2)
