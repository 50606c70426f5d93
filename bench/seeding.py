"""Algorithm 1 beside the model of a step: `python -m bench.seeding --traces DIR [--models ...] [--seeds N]`.

Owns the comparison that docs/seeding.md shows: the same job, segment and seed under both controllers, what
each trains in a second and for a unit of money. Runs are those of `bench.evaluation`, at a coarser scale of
tokens; a run whose result is in the file is not repeated. The file does not know of changes of the code.
"""

import argparse
import statistics
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import matplotlib
import msgspec

matplotlib.use("Agg")

from matplotlib import pyplot

from bench.evaluation.cells import SEGMENTS, Cell
from bench.evaluation.setups import PREEMPTIBLE_PER_HOUR, RESERVED_PER_HOUR, Around
from bench.evaluation.simulated import CellResult, code_hash, simulate

CONTROLLERS = ("feedback", "model")
TOKEN_SCALE = 128
MAX_S = 1500.0  # far beyond any window that either of them chooses
NAME = "seeding.svg"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One run. hosts: preemptible ones, the mean; tokens_per_unit: trained for a unit of money."""

    model: str
    segment: str
    seed: int
    controller: str
    steps: int
    tokens_per_s: float
    tokens_per_unit: float
    hosts: float


def line_of(found: CellResult) -> Line:
    """What is compared of a run. Raises ValueError for one that did not go to its end."""
    if not found.ok:
        raise ValueError(f"{found.cell.name}: {found.ended}: {found.reason}")
    per_hour = RESERVED_PER_HOUR + found.hosts * PREEMPTIBLE_PER_HOUR
    cell = found.cell
    return Line(
        model=cell.model,
        segment=cell.segment,
        seed=cell.seed,
        controller=cell.variant,
        steps=len(found.steps),
        tokens_per_s=found.tokens_per_s,
        tokens_per_unit=found.tokens_per_s * 3600 / per_hour,
        hosts=found.hosts,
    )


def runs(models: Iterable[str], seeds: int, known: Iterable[Line], traces: Path) -> Iterator[Line]:
    """Those that are not known yet, one after the other."""
    sets = [(name, (f"seeding.controller={name}", f"seeding.max_s={MAX_S}")) for name in CONTROLLERS]
    around, code = Around(traces, tuple(sets)), code_hash()
    there = {(line.model, line.segment, line.seed, line.controller) for line in known}
    for seed in range(1, seeds + 1):
        for model in models:
            for segment in SEGMENTS:
                for name in CONTROLLERS:
                    if (model, segment, seed, name) not in there:
                        cell = Cell(
                            kind="segment", model=model, seed=seed, segment=segment, variant=name,
                            token_scale=TOKEN_SCALE,
                        )  # fmt: skip
                        yield line_of(simulate(cell, around, code))


def ratios(lines: Iterable[Line], field: str) -> Mapping[tuple[str, str], list[float]]:
    """By model and segment: the model's figure over Algorithm 1's, seed by seed."""
    value = {(one.model, one.segment, one.seed, one.controller): float(getattr(one, field)) for one in lines}
    found: dict[tuple[str, str], list[float]] = {}
    for (model, segment, seed, name), ours in value.items():
        theirs = value.get((model, segment, seed, "feedback"))
        if name == "model" and theirs is not None:
            found.setdefault((model, segment), []).append(ours / theirs)
    return dict(sorted(found.items()))


def table(lines: list[Line]) -> Iterator[str]:
    """Markdown."""
    yield "| model | segment | seeds | tokens a second | spread | tokens for the money | spread | instances |"
    yield "|---|---|---|---|---|---|---|---|"
    money = ratios(lines, "tokens_per_unit")
    for (model, segment), fast in ratios(lines, "tokens_per_s").items():
        cheap = money[model, segment]
        hosts = [
            statistics.mean(
                one.hosts
                for one in lines
                if (one.model, one.segment, one.controller) == (model, segment, name)
            )
            for name in CONTROLLERS
        ]
        yield (
            f"| {model} | {segment} | {len(fast)} | {statistics.mean(fast) - 1:+.1%} "
            f"| {min(fast) - 1:+.1%} to {max(fast) - 1:+.1%} | {statistics.mean(cheap) - 1:+.1%} "
            f"| {min(cheap) - 1:+.1%} to {max(cheap) - 1:+.1%} | {hosts[0]:.1f}, {hosts[1]:.1f} |"
        )


def figure(lines: list[Line], directory: Path) -> Path:
    """Draw it; returns the file."""
    drawing, panels = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    titles = {"tokens_per_s": "tokens a second", "tokens_per_unit": "tokens for the money"}
    for panel, (field, title) in zip(panels, titles.items(), strict=True):
        found = ratios(lines, field)
        for place, values in enumerate(found.values()):
            percents = [100 * (value - 1) for value in values]
            panel.bar(place, statistics.mean(percents), color="#9fc5b4", width=0.6)
            panel.plot([place] * len(percents), percents, "o", color="#1b7f5c", markersize=4)
        panel.set_xticks(range(len(found)), [f"{model}\n{segment}" for model, segment in found])
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set_title(f"{title}, against Algorithm 1 (%)", fontsize=10)
    drawing.tight_layout()
    file = directory / NAME
    drawing.savefig(file)
    pyplot.close(drawing)
    return file


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.seeding", description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="folder of rlboost_like_seg{A,B,C}.csv")
    parser.add_argument("--models", nargs="+", default=["14b", "8b"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=Path(".bench/seeding.jsonl"))
    parser.add_argument("--figure", type=Path, help="folder for the plot")
    arguments = parser.parse_args()
    file: Path = arguments.results
    file.parent.mkdir(parents=True, exist_ok=True)
    text = file.read_bytes() if file.exists() else b""
    lines = msgspec.json.Decoder(Line).decode_lines(text)
    with file.open("ab") as kept:
        for line in runs(arguments.models, arguments.seeds, lines, arguments.traces):
            kept.write(msgspec.json.encode(line) + b"\n")
            kept.flush()
            lines.append(line)
            print(line, flush=True)
    print("\n".join(table(lines)))
    if arguments.figure is not None:
        print(figure(lines, arguments.figure))


if __name__ == "__main__":
    main()
