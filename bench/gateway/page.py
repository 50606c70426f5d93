"""Figures of the gateway bench: a table, and a section of docs/benchmarks.md."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.table import Table

from bench.gateway.figures import Figures
from bench.gateway.goals import GOALS, goals
from bench.page_sections import put

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
HOW = Path(__file__).with_name("how.md").read_text()
WHY = Path(__file__).with_name("why.md").read_text()


COLUMNS = ("servers", "front", "streams", "tokens/s", "first token p50", "p99", "CPU s / M tokens", "lost")


def cells(one: Figures) -> tuple[str, ...]:
    """A line."""
    return (
        one.servers + (", one is killed" if one.killed else ""),
        one.front,
        str(one.together),
        f"{one.tokens_per_s:,.0f}",
        f"{one.ttft_p50_s * 1e3:,.0f} ms",
        f"{one.ttft_p99_s * 1e3:,.0f} ms",
        f"{one.cpu_s_per_m:,.1f}",
        str(one.lost),
    )


def table(found: Sequence[Figures]) -> Table:
    """Table for the terminal."""
    shown = Table(*COLUMNS)
    for one in found:
        shown.add_row(*cells(one))
    return shown


def write(found: Sequence[Figures], day: str) -> None:
    """Renew the section of the page."""
    figures, verdicts = _lines(COLUMNS, map(cells, found)), _lines(GOALS, goals(found))
    put(PAGE, "gateway", f"{HOW}\nMeasured {day}.\n\n{figures}\n\n{verdicts}\n\n{WHY}")


def _lines(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    marks = ("---",) * len(columns)
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, marks, *rows))
