"""Tables that fit: which columns are shown in a terminal of some width, and which cells are cut.

Owns the choice. What is in the cells is each command's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

GAP = 2  # cells between two columns
MIN_LAST = 12  # cells that a last column may shrink to before another one is left out for it

Cell = str | Text


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `spare`: 0 is always shown; of the others the highest is left out first."""

    name: str
    right: bool = False
    spare: int = 0


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> Table:
    """The table with as many columns as `width` cells hold; its last column is cut, no other is."""
    widths = [
        max([len(column.name), *(_length(row[place]) for row in rows)])
        for place, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    while _needed([widths[place] for place in shown]) > width:
        spare = [place for place in shown if columns[place].spare]
        if not spare:
            break
        shown.remove(max(spare, key=lambda place: columns[place].spare))
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    left = width - _needed([widths[place] for place in shown[:-1]], last=0)
    for place in shown:
        last = place == shown[-1]
        table.add_column(
            columns[place].name,
            justify="right" if columns[place].right else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=max(min(widths[place], left), 1) if last else widths[place],
            min_width=None if last else widths[place],
        )
    for row in rows:
        table.add_row(
            *(row[place] if isinstance(row[place], Text) else Text(str(row[place])) for place in shown)
        )
    return table


def _length(cell: Cell) -> int:
    return cell_len(cell.plain if isinstance(cell, Text) else cell)


def _needed(widths: Sequence[int], last: int | None = None) -> int:
    """Cells of these columns side by side, with the last one as small as it may be."""
    if not widths:
        return 0
    end = min(widths[-1], MIN_LAST) if last is None else widths[-1] + GAP
    return sum(width + GAP for width in widths[:-1]) + end
