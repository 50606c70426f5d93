"""Simulates RLBoost's experiments, and RollPacker's tail batching.

Usage: `python -m bench.evaluation --traces DIR [--record | --fidelity | --composition] [--seeds N]`,
or `python -m bench.evaluation --paper rollpacker [--write-docs]`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.evaluation import cells, fidelity, grid, page, plots
from bench.evaluation.cells import Cell
from bench.evaluation.claims import Results, all_claims
from bench.evaluation.rollpacker import composition
from bench.evaluation.rollpacker import grid as rounds_grid
from bench.evaluation.rollpacker import page as rounds_page
from bench.evaluation.rollpacker import plot as rounds_plot
from bench.evaluation.rollpacker.periods import Found
from bench.evaluation.runner import run
from bench.evaluation.setups import HARDER, MODELS, VARIANTS, Around
from bench.evaluation.simulated import ROOT, CellResult
from bench.evaluation.store import Store
from bench.page_sections import put

FOLDER = ROOT / ".bench" / "evaluation"
PAGE = ROOT / "docs" / "evaluation.md"
ROUNDS_PAGE = ROOT / "docs" / "evaluation_rounds.md"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.evaluation", description=__doc__)
    parser.add_argument(
        "--paper",
        choices=["rlboost", "rollpacker"],
        default="rlboost",
        help="whose (rlboost); rollpacker: every cell of docs/evaluation_rounds.md, without a trace",
    )
    parser.add_argument("--traces", type=Path, metavar="DIR", help="folder of rlboost_like_seg{A,B,C}.csv")
    parser.add_argument("--models", nargs="+", choices=[*MODELS, *HARDER], default=list(MODELS))
    parser.add_argument("--segments", nargs="*", choices=cells.SEGMENTS, default=list(cells.SEGMENTS))
    parser.add_argument("--seeds", type=int, help="how many, from 1 on (5; --fidelity: 1, --composition: 2)")
    parser.add_argument(
        "--variants", nargs="+", default=["gleaner"], metavar="NAME", help=", ".join(VARIANTS)
    )
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="NAME:A.B=C[,A.B=C...]",
        help="a variant of your own: settings over the paper's; repeatable, and run with the others",
    )
    parser.add_argument(
        "--record", action="store_true", help="everything that docs/evaluation.md shows: an hour of two cores"
    )
    parser.add_argument(
        "--fidelity", action="store_true", help="the cells of the page's section on the paper's whole policy"
    )
    parser.add_argument(
        "--composition",
        action="store_true",
        help="RLBoost's fleet with RollPacker's lengths: a section of docs/evaluation_rounds.md",
    )
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="with --record, --fidelity, --composition or --paper rollpacker: write the page's tables",
    )
    parser.add_argument(
        "--reprint", action="store_true", help="write the page's comparison from docs/evaluation.json; no run"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--store", type=Path, default=FOLDER, help="where results lie (.bench/evaluation)")
    parser.add_argument("--show", action="store_true", help="run nothing, show what is there")
    parser.add_argument("--fresh", action="store_true", help="run again what is there already")
    parser.add_argument(
        "--any-code", action="store_true", help="take results of other code for what they are"
    )
    arguments = parser.parse_args()
    if arguments.reprint:
        page.reprint(PAGE)
        return
    extra = tuple(
        (text.partition(":")[0], tuple(text.partition(":")[2].split(","))) for text in arguments.variant
    )
    kinds = [arguments.record, arguments.fidelity, arguments.composition]
    if arguments.paper == "rollpacker" and (arguments.traces or any(kinds)):
        parser.error(
            "--paper rollpacker: expected none of --traces, --record, --fidelity and --composition beside it"
        )
    if sum(kinds) > 1:
        parser.error("expected one of --record, --fidelity and --composition")
    around = Around(arguments.traces, extra)
    usual = fidelity.SEEDS if arguments.fidelity else cells.SEEDS
    count: int = arguments.seeds or len(composition.SEEDS if arguments.composition else usual)
    seeds = range(1, count + 1)
    variants = [*arguments.variants, *(name for name, _ in extra)]
    store = Store(arguments.store, around, any_code=arguments.any_code)
    console = Console(width=150, soft_wrap=False)

    show: bool = arguments.show

    def do(wanted: Sequence[Cell]) -> list[CellResult]:
        nonlocal show
        found = run(wanted, store, around, arguments.workers, fresh=arguments.fresh, show=show)
        show = show or len(found) < len(wanted)  # a Ctrl-C: run nothing more
        return found

    if arguments.paper == "rollpacker":
        results = rounds_grid.record(do, rounds_grid.SEEDS[:count])
        _finish_rounds(results, arguments.write_docs)
    elif arguments.record:
        results = grid.record(do, cells.SEEDS[:count])
    elif arguments.fidelity:
        results = fidelity.record(do, seeds)
    elif arguments.composition:
        results = composition.record(do, seeds)
    else:
        alone = cells.colocated(arguments.models, seeds)
        results = do([*alone, *cells.segments(arguments.models, arguments.segments, seeds, variants)])
    if arguments.composition:
        print(composition.text(Found(results)))
    elif arguments.paper == "rlboost":
        console.print(table(results))
    if arguments.record and arguments.write_docs:
        all_of = Results(results)
        claims = all_claims(all_of)
        plots.write_all(all_of, claims, ROOT / "docs" / "images")
        page.write(PAGE, all_of, claims)
    if arguments.fidelity and arguments.write_docs:
        put(PAGE, "fidelity", fidelity.text(Results(results)))
    if arguments.composition and arguments.write_docs:
        put(ROUNDS_PAGE, "composition", composition.text(Found(results)))
    bad = [result for result in results if not result.ok]
    for result in bad:
        console.print(f"{result.cell.name}: {result.ended}: {result.reason}", highlight=False)
    sys.exit(1 if bad else 0)


def _finish_rounds(results: Sequence[CellResult], write_docs: bool) -> None:
    """Print the tables, and write them into their page."""
    found = Found(results)
    print(rounds_page.gains_text(found), rounds_page.ablations_text(found), sep="\n\n")
    if write_docs:
        rounds_plot.write(found, ROOT / "docs" / "images" / "evaluation_rounds.png")
        rounds_page.write(ROUNDS_PAGE, found)


def table(results: Sequence[CellResult]) -> Table:
    """Throughput over the co-located run of the same model and seed, by model, segment and variant."""
    alone_in = Results(results)
    base = {(model, seed): one for model in [*MODELS, *HARDER] for seed, one in alone_in.base(model).items()}
    rows: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for one in results:
        alone = base.get((one.cell.model, one.cell.seed))
        if one.cell.kind == "segment" and one.ok and alone is not None:
            key = one.cell.model, one.cell.segment, one.cell.variant
            rows.setdefault(key, []).append((one.tokens_per_s / alone.tokens_per_s, one.hosts))
    found = Table("model", "segment", "variant", "x co-located", "least", "most", "hosts", "seeds")
    for (model, segment, variant), pairs in sorted(rows.items()):
        gains = [gain for gain, _ in pairs]
        figures = [
            sum(gains) / len(gains),
            min(gains),
            max(gains),
            sum(hosts for _, hosts in pairs) / len(pairs),
        ]
        found.add_row(model, segment, variant, *(f"{figure:.2f}" for figure in figures), str(len(pairs)))
    return found


if __name__ == "__main__":
    main()
