"""Section of docs/benchmarks.md on weight deltas, with its figure.

Written from a run's results.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from bench import page_sections
from bench.runtime.table import VERDICTS, figure
from bench.weights.delta_codec import (
    APART,
    BUILD,
    COPY,
    DIGEST,
    IN_PLACE,
    RESULTS,
    WAYS,
    WRITE,
    GivenUp,
    Measured,
)

NAME = "weight deltas"
FIGURE = "delta_codec.png"
HOW = Path(__file__).with_name("delta_codec.md")
AT = 1e-6
"""The learning rate of the goals: one element in a hundred changes."""
ENCODE_GB_S, APPLY_GB_S, BYTES_EACH = 5.0, 20.0, 3.1

_ENCODE, _APPLY, _LIMIT = "#1b7f5c", "#5b7a99", "#c0392b"
_SHADES = ("#c9dfd6", "#6bb093", "#1b7f5c")


def write(results: Mapping[str, Any], directory: Path) -> None:
    """Put the section into benchmarks.md of `directory`, and the figure into its images."""
    page_sections.put(directory / "benchmarks.md", NAME, text(results))
    draw(rows_of(results), directory / "images" / FIGURE)


def rows_of(results: Mapping[str, Any]) -> list[Measured]:
    """Contents of a results file."""
    return [Measured(**one) for one in results["rows"]]


def text(results: Mapping[str, Any]) -> str:
    """The section."""
    return "\n".join(
        [
            "# Weight deltas",
            "",
            "Written by `python -m bench.weights.delta_codec --write-docs` from "
            f"`{RESULTS.name}`: begun at {results['began']}, {results['took_s']} s.",
            "",
            "Machine: " + "; ".join(f"{key} {value}" for key, value in results["machine"].items()) + ".",
            "",
            HOW.read_text().strip(),
            "",
            f"![Bytes for a changed element, and speeds of one core, of each way](images/{FIGURE})",
            "",
            *lines(results),
        ]
    )


def lines(results: Mapping[str, Any]) -> list[str]:
    """The tables: every way at every rate of change, then the goals."""
    rows = rows_of(results)
    found = []
    for rate in sorted({row.learning_rate for row in rows}):
        some = [row for row in rows if row.learning_rate == rate]
        changed = f"{figure(100 * some[0].changed)} % of the elements changed"
        found += [f"| {changed} | bytes each | encode, GB/s | apply, GB/s |", "|---|---:|---:|---:|"]
        for row in some:
            cells = (figure(row.bytes_each or None), speed(row.encode), speed(row.apply))
            found.append(f"| {row.name} | {' | '.join(cells)} |")
        found.append("")
    found += ["| goal, at 1 % | measured | goal | verdict |", "|---|---:|---:|---|"]
    found += (f"| {' | '.join(cells)} |" for cells in goals(rows))
    found += ["", "| a version applied, at 1 % | ms for a GB of weights | GB/s |", "|---|---:|---:|"]
    found += (f"| {what} | {figure(1e3 / rate)} | {figure(rate)} |" for what, rate in parts(rows))
    useless, size_mb = GivenUp(**results["given_up"]), results["image_bytes"] / 1e6
    sampled, encoded = (figure(1e3 * median(each)) for each in (useless.sampled_s, useless.encoded_s))
    return [
        *found,
        "",
        f"An image of {size_mb:.0f} MB that changed everywhere is known to have no delta after {sampled} ms "
        f"of a core; to encode it until it is too large takes {encoded} ms.",
    ]


def parts(rows: Sequence[Measured]) -> list[tuple[str, float]]:
    """Parts of bringing a version to a host's memory, and the speed of each alone, in GB/s."""
    rates = {row.name: median(row.apply) for row in rows if row.learning_rate == AT and row.apply}
    ours = WAYS[0].name
    return [
        ("decode and write: the goal's *apply*", rates[ours]),
        ("... of it, writing alone (places known): its limit", rates[WRITE]),
        ("copy of the base, whole", rates[COPY]),
        ("digest of what came out", rates[DIGEST]),
        ("decode, write, digest, in place", rates[IN_PLACE]),
        ("copy, decode, write, digest, chunk by chunk: what a host does", rates[APART]),
    ]


def speed(rates: Sequence[float]) -> str:
    """The median of the rounds, and the best."""
    return f"{figure(median(rates))} ({figure(max(rates))})" if rates else "-"


def goals(rows: Sequence[Measured]) -> list[tuple[str, str, str, str]]:
    """Goals of the way that a trainer uses by default: name, value, goal, verdict."""
    (ours,) = [row for row in rows if row.learning_rate == AT and row.name == WAYS[0].name]
    (build,) = [row for row in rows if row.learning_rate == AT and row.name == BUILD]
    encode, whole, apply = median(ours.encode), median(build.encode), median(ours.apply)
    return [
        ("encode", f"{figure(encode)} GB/s", f"{ENCODE_GB_S:g} GB/s", VERDICTS[encode >= ENCODE_GB_S]),
        (
            "build a whole delta",
            f"{figure(whole)} GB/s",
            f"{ENCODE_GB_S:g} GB/s",
            VERDICTS[whole >= ENCODE_GB_S],
        ),
        ("apply", f"{figure(apply)} GB/s", f"{APPLY_GB_S:g} GB/s", VERDICTS[apply >= APPLY_GB_S]),
        (
            "bytes for a changed element",
            figure(ours.bytes_each),
            f"{BYTES_EACH:g}",
            VERDICTS[ours.bytes_each <= BYTES_EACH],
        ),
    ]


def draw(rows: Sequence[Measured], file: Path) -> None:
    """Left: bytes for a changed element. Right: speeds at one element in a hundred."""
    names = [way.name for way in WAYS]
    rates = sorted({row.learning_rate for row in rows})
    drawing, (sizes, speeds) = pyplot.subplots(1, 2, figsize=(12, 4.2), sharey=True)
    places = range(len(names))
    for index, rate in enumerate(rates):
        found = {row.name: row for row in rows if row.learning_rate == rate}
        share = figure(100 * found[COPY].changed)
        sizes.barh(
            [place + 0.27 * (index - 1) for place in places],
            [found[name].bytes_each for name in names],
            0.25,
            color=_SHADES[index % len(_SHADES)],
            label=f"{share} % changed",
        )
    found = {row.name: row for row in rows if row.learning_rate == AT}
    for shift, color, what in ((-0.2, _ENCODE, "encode"), (0.2, _APPLY, "apply")):
        speeds.barh(
            [place + shift for place in places],
            [median(getattr(found[name], what)) for name in names],
            0.36,
            color=color,
            label=what,
        )
    speeds.axvline(median(found[COPY].apply), color=_LIMIT, linestyle="--", linewidth=1, label="copy")
    sizes.set_yticks(list(places), names, fontsize=8)
    sizes.invert_yaxis()
    sizes.set_title("bytes for a changed element of bfloat16", fontsize=10)
    speeds.set_title("GB of weights for a second of one core, 1 % changed", fontsize=10)
    for axes in (sizes, speeds):
        axes.legend(fontsize=8)
        axes.grid(axis="x", linewidth=0.3)
    drawing.tight_layout()
    drawing.savefig(file, dpi=110)
    pyplot.close(drawing)
