"""Section of docs/benchmarks.md on the token plane, written from a run's results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import page_sections
from bench.runtime.table import VERDICTS, figure
from bench.token_plane import figure as drawing
from bench.token_plane.goals import goals
from bench.token_plane.memory import MemoryUse
from bench.token_plane.sizes import SystemResult

NAME = "token plane"
BUSY = 1.0
"""Load of the machine before the run from which its figures are called those of a busy one."""
HOW = Path(__file__).with_name("how.md")


def write(results: Mapping[str, Any], directory: Path) -> None:
    """Put the section into benchmarks.md of `directory`."""
    page_sections.put(directory / "benchmarks.md", NAME, text(results))


def text(results: Mapping[str, Any]) -> str:
    """The section."""
    found = [SystemResult(**one) for one in results["found"]]
    held = [MemoryUse(**one) for one in results["memory"]]
    return "\n".join([*_opening(results), *_figures(found), *_goals(found), *_memory(held)])


def figures(one: SystemResult) -> list[str]:
    """The cells of one line of the table."""
    values = (one.tokens_per_s, one.cpu_s_per_m, one.router_cpu_s_per_m or None)
    times = (one.p50_ms, one.p99_ms, one.full_p50_ms, one.full_p99_ms)
    return [*map(figure, values), *(figure(value, never="-") for value in times)]


def _opening(results: Mapping[str, Any]) -> list[str]:
    sizes, machine = results["sizes"], results["machine"]
    busy = float(machine["load before the run"]) >= BUSY
    words = HOW.read_text().format(
        burst=sizes["burst"], pace_ms=sizes["pace_s"] * 1e3, ring=sizes["ring_frames"], commit_ms=20.0
    )
    return [
        "# Token plane",
        "",
        "Tokens into one process, ours journaled and acknowledged. Written by",
        "`python -m bench.token_plane --write-docs` from `token_plane.json`, which one run of",
        f"`python -m bench.token_plane --json docs/token_plane.json` wrote: begun at {results['began']},",
        f"{results['took_s']} s, {sizes['streams']} instances or workers,",
        f"the best of {sizes['repeats']} times {sizes['seconds']:g} s.",
        *(["**The machine was busy with other work meanwhile.**"] if busy else []),
        "",
        "Machine: " + "; ".join(f"{key} {value}" for key, value in machine.items()) + ".",
        "",
        f"![Rate, cost and latency by the width of a frame](images/{drawing.NAME})",
        "",
        words.strip(),
        "",
    ]


def _figures(found: list[SystemResult]) -> list[str]:
    heads = ("rows", "system", "tokens/s", "CPU s a million, receiver", "CPU s a million, router")
    times = ("p50, ms", "p99, ms", "p50 at full speed", "p99 at full speed")
    lines = [f"| {' | '.join((*heads, *times))} |", "|---:|---|" + "---:|" * 7]
    for one in sorted(found, key=lambda one: one.rows):
        lines.append(f"| {one.rows} | {one.system} | {' | '.join(figures(one))} |")
    return [*lines, ""]


def _goals(found: list[SystemResult]) -> list[str]:
    lines = ["| goal, at 64 rows | tokens/s | goal | verdict |", "|---|---:|---:|---|"]
    for goal in goals(found):
        lines.append(f"| {goal.what} | {figure(goal.ours)} | {figure(goal.bound)} | {VERDICTS[goal.met]} |")
    return [*lines, ""]


def _memory(held: list[MemoryUse]) -> list[str]:
    lines = [
        "What the manager's state holds (allocations, prompts of 64 tokens for 8 samples included):",
        "",
        "| requests in flight | bytes each | bytes a token |",
        "|---:|---:|---:|",
    ]
    for one in held:
        cells = f"{figure(one.bytes_per_request)} | {figure(one.bytes_per_token)}"
        lines.append(f"| {one.requests:,} | {f'refused: {one.refused} | -' if one.refused else cells} |")
    return [*lines, ""]
