"""Section of docs/benchmarks.md on pulls, with its figure, from a run's results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from bench import page_sections
from bench.runtime.table import VERDICTS, figure
from bench.weights.pull import CONNECTIONS, RESULTS, SHARE, Measured, of, shares
from bench.weights.pull_pairs import IPERF, LIMIT, MOONCAKE, NIXL, OURS

NAME = "weight pull"
FIGURE = "weight_pull.png"
BUSY = 1.0
"""Load of the machine before the run from which its figures are called those of a busy one."""
HOW = Path(__file__).with_name("pull.md")
_COLOURS = {OURS: "#1b7f5c", LIMIT: "#2c3e50", IPERF: "#7f8c8d", MOONCAKE: "#c0392b", NIXL: "#d98c3f"}


def write(results: Mapping[str, Any], directory: Path) -> None:
    """Put the section into benchmarks.md of `directory`, and the figure into its images."""
    page_sections.put(directory / "benchmarks.md", NAME, text(results))
    draw(rows_of(results), directory / "images" / FIGURE)


def rows_of(results: Mapping[str, Any]) -> list[Measured]:
    """Contents of a results file."""
    return [Measured(**one) for one in results["found"]]


def text(results: Mapping[str, Any]) -> str:
    """The section."""
    found, machine = rows_of(results), results["machine"]
    busy = float(machine["load before the run"]) >= BUSY
    return "\n".join(
        [
            "# Weight pull",
            "",
            f"Written by `python -m bench.weights.pull --write-docs` from `{RESULTS.name}`: begun at "
            f"{results['began']}, {results['took_s']} s; {results['mib']} MiB, medians of "
            f"{results['rounds']} rounds in which the ways take turns.",
            *(["**The machine was busy with other work meanwhile.**"] if busy else []),
            "",
            "Machine: " + "; ".join(f"{key} {value}" for key, value in machine.items()) + ".",
            "",
            HOW.read_text().strip(),
            "",
            f"![GB/s and processor seconds a GB of each way, by connections](images/{FIGURE})",
            "",
            *lines(found),
        ]
    )


def lines(found: Sequence[Measured]) -> list[str]:
    """The tables: every way, then the goals."""
    table = ["| way | connections | GB/s | least to most | CPU s a GB |", "|---|---:|---:|---:|---:|"]
    for one in found:
        cells = [one.why_not or "-", "-", "-"]
        if one.rates:
            spread = f"{figure(min(one.rates))} to {figure(max(one.rates))}"
            cells = [figure(median(one.rates)), spread, figure(median(one.cpu_s))]
        table.append(f"| {one.system} | {one.connections or 'its own'} | {' | '.join(cells)} |")
    table += ["", "| goal | share of the limit | goal | verdict |", "|---|---:|---:|---|"]
    for count, share in shares(found).items():
        goal = f"{count} connection{'s' if count > 1 else ''}, every chunk hashed"
        table.append(f"| {goal} | {share:.2f} | {SHARE} | {VERDICTS[share >= SHARE]} |")
    return table


def draw(found: Sequence[Measured], file: Path) -> None:
    """Left: GB/s by connections, the goal as a dash. Right: processor seconds a GB."""
    drawing, (rates, costs) = pyplot.subplots(1, 2, figsize=(12, 4.2))
    places = {count: place for place, count in enumerate((*CONNECTIONS, 0))}
    systems = [OURS, LIMIT, IPERF, MOONCAKE, NIXL]
    for one in found:
        if not one.rates:
            continue
        shift = systems.index(one.system) - 1.0 if one.connections else systems.index(one.system) - 3.5
        place = places[one.connections] + 0.27 * shift
        colour = _COLOURS[one.system]
        label = one.system if one.connections in (CONNECTIONS[0], 0) else None
        spread = [[median(one.rates) - min(one.rates)], [max(one.rates) - median(one.rates)]]
        rates.bar(place, median(one.rates), 0.25, color=colour, label=label, yerr=spread, ecolor="#999999")
        costs.bar(place, median(one.cpu_s), 0.25, color=colour)
        limit = of(found, LIMIT, one.connections)
        if one.system == OURS and limit is not None:
            goal = SHARE * limit
            rates.plot([place - 0.13, place + 0.13], [goal, goal], color="black", linewidth=1.5)
    rates.set_title("GB/s, the goal as a line (more is better)", fontsize=10)
    costs.set_title("processor seconds a GB, both ends (less is better)", fontsize=10)
    for axis in (rates, costs):
        axis.set_xticks(list(places.values()), [*map(str, CONNECTIONS), "as the peer has it"])
        axis.set_xlabel("TCP connections", fontsize=8)
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    rates.legend(fontsize=8)
    drawing.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(file, dpi=110)
    pyplot.close(drawing)
