"""The results in the terminal: a line for each figure, a column for each system."""

import math

from rich.console import Console
from rich.table import Table

from bench.runtime.harness import Results
from bench.runtime.rows import ROWS, SYSTEMS, Metric, RowSpec, met, middle

VERDICTS = {True: "met", False: "NOT met", None: "-"}


def figure(value: float | None, note: str = "", never: str = "never") -> str:
    """One figure in display form: three significant digits."""
    if value is None:
        return "no" if note else "-"
    if math.isnan(value):
        return never
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 4)}f}"


def lines(results: Results) -> list[tuple[RowSpec, Metric, list[str]]]:
    """Every measured row and metric, with one cell a system."""
    found = []
    for spec in ROWS:
        if spec.name not in results.samples and spec.name not in results.notes:
            continue
        for metric in spec.metrics:
            cells = []
            for system in SYSTEMS:
                note = results.notes.get(spec.name, {}).get(system, "")
                cells.append(figure(middle(results.samples, spec.name, system, metric.name), note))
            found.append((spec, metric, cells))
    return found


def show(results: Results, console: Console) -> None:
    """Print the table, then the failed measurements with their causes."""
    table = Table("what", "unit", *SYSTEMS, "goal", title="Actor runtimes, medians of the rounds")
    before = None
    for spec, metric, cells in lines(results):
        first = spec is not before
        verdict = VERDICTS[met(spec, results.samples)] if first and spec.goals else ""
        table.add_row(spec.title if first else "", metric.label, *cells, verdict)
        before = spec
    console.print(table)
    for row, notes in results.notes.items():
        for system, note in notes.items():
            console.print(f"{row}, {system}: {note}", highlight=False)
