"""Distribution of a version to many receivers, modelled.

Usage: `python -m bench.weights.fan_out [--write-docs]`. The relay policy of production over modelled cards
and links (`wave_model`): no figure is of this machine.
"""

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.page_sections import put
from bench.runtime.harness import ROOT
from bench.weights import fan_out_picture
from bench.weights.wave_cases import CaseResult, cases, tell

HEADS = (
    "receivers",
    "longest, s",
    "times one alone",
    "at most",
    "star, s",
    "left the origin, GB",
    "crossed, GB",
    "came again, MB",
    "met",
)
INTRODUCTION = """\
# Weights to many receivers

Written by `python -m bench.weights.fan_out --write-docs`. Modelled, not measured: the policy of production
(`actors/weights/transfer/relay.py`), asked when production's receivers ask it (every {world.ask_again_s:g} s,
and {world.retry_s:g} s after a failure), over chunks, cards and links of a discrete-event model
(`bench/weights/wave_model.py`). 16 GB in chunks of 16 MB, from an origin with 200 Gbps to receivers with 50
Gbps each way; deaths half a second after one another, from 0.7 s on; a broken connection is noticed after
{world.broken_s:g} s, a silent one given up after {world.silent_s:g} s where the policy does not give it up
before; one millisecond until a chunk that came can be served. *Longest*: of all receivers, from joining on.
*Star*: when the last one has everything where all pull from the origin. [weights.md](weights.md) explains.
"""


def row(result: CaseResult) -> tuple[str, ...]:
    """The cells of one case."""
    outcome, case = result.outcome, result.case
    crossed = sum(outcome.crossed_bytes.values())
    return (
        case.name,
        f"{result.judged_s:.2f}",
        f"{result.times_alone:.2f}",
        f"{case.at_most:g}" if case.at_most else "",
        f"{result.star_s:.2f}" if result.star_s else "",
        f"{outcome.served_bytes['origin'] / 1e9:.1f}",
        f"{crossed / 1e9:.1f}" if crossed else "",
        f"{outcome.wasted_bytes / 1e6:.0f}" if outcome.wasted_bytes else "",
        ("yes" if result.met else "NO") if case.at_most else "",
    )


def page(some: Sequence[CaseResult]) -> str:
    """The section of docs/benchmarks.md."""
    world = some[0].case.world
    lines = [
        INTRODUCTION.format(world=world),
        f"| {' | '.join(HEADS)} |",
        "|---" + "|---:" * (len(HEADS) - 1) + "|",
        *(f"| {' | '.join(row(result))} |" for result in some),
    ]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.weights.fan_out", description=__doc__)
    parser.add_argument(
        "--write-docs", action="store_true", help="write the section of docs/benchmarks.md and the picture"
    )
    arguments = parser.parse_args()
    found = [tell(case) for case in cases()]
    table = Table(*HEADS, title="Weights to many receivers, modelled")
    for result in found:
        table.add_row(*row(result))
    Console(width=150).print(table)
    if arguments.write_docs:
        put(ROOT / "docs" / "benchmarks.md", "weights to many", page(found))
        (ROOT / "docs" / "images" / fan_out_picture.NAME).write_text(fan_out_picture.picture())
    if not all(result.met for result in found):
        raise SystemExit("a wave took longer than it may")


if __name__ == "__main__":
    main()
