"""Tables that fit a terminal: choice of the shown columns and of the cut cells.

Owns the choice and the lines. Each command owns the contents of its cells. Imports no terminal library:
`rlctl ps` prints the lines as they are, and Rich draws a `Table` beside its other output.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.text import Text

GAP = 2  # cells between two columns
MIN_LAST = 12  # cells that a last column may shrink to before another one is left out for it
CUT = "…"
_CODES = {"bold": "1", "red": "31", "yellow": "33"}  # of ECMA-48, by the words of a style


class Styled(str):
    """A cell's text with a style, such as "bold red"."""

    style: str

    def __new__(cls, text: str, style: str) -> Styled:
        """The text, with the terminal codes of its style."""
        made = super().__new__(cls, text)
        made.style = style
        return made


class Column(NamedTuple):
    """A column. `spare`: 0 is always shown; of the others the highest is left out first."""

    name: str
    right: bool = False
    spare: int = 0


class Table(NamedTuple):
    """Lines of styled pieces; none is wider than the width that it was made for."""

    lines: Sequence[Sequence[str]]

    def text(self, *, styled: bool) -> str:
        """All lines, each with its line end; `styled`: with terminal codes."""
        shown = _escaped if styled else str
        return "".join("".join(map(shown, line)) + "\n" for line in self.lines)

    def __rich__(self) -> Text:
        """Yield the lines to Rich."""
        from rich.text import Text

        lines = [Text.assemble(*((str(piece), _style(piece)) for piece in line)) for line in self.lines]
        return Text("\n", no_wrap=True, overflow="ignore").join(lines)


def fitted(columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int) -> Table:
    """The table with as many columns as `width` cells hold; only its last column is cut."""
    titles: Sequence[str] = [Styled(column.name, "bold") for column in columns]
    lines = [titles, *([_printable(cell) for cell in row] for row in rows)]
    widths = [max(cell_len(line[place]) for line in lines) for place in range(len(columns))]
    shown = list(range(len(columns)))
    while _needed([widths[place] for place in shown]) > width:
        spare = [place for place in shown if columns[place].spare]
        if not spare:
            break
        shown.remove(max(spare, key=lambda place: columns[place].spare))
    left = width - _needed([widths[place] for place in shown[:-1]], last=0)
    widths[shown[-1]] = max(min(widths[shown[-1]], left), 1)
    return Table([_line([(columns[it], line[it], widths[it]) for it in shown], width) for line in lines])


def cell_len(text: str) -> int:
    """Width of a text in terminal cells."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _line(cells: Sequence[tuple[Column, str, int]], width: int) -> list[str]:
    """The pieces of a line: cells, and the spaces between them."""
    pieces: list[str] = []
    left = width
    for place, (column, cell, own) in enumerate(cells):
        last = place == len(cells) - 1
        cell = _cut(cell, own)
        space = " " * (own - cell_len(cell))
        own_pieces = [space, cell] if column.right else [cell, "" if last else space]
        for piece in [*own_pieces, "" if last else " " * GAP]:
            piece = _cut(piece, left)
            left -= cell_len(piece)
            if piece:
                pieces.append(piece)
    return pieces


def _cut(cell: str, cells: int) -> str:
    """The text, cut to `cells`; its style is kept."""
    if cell_len(cell) <= cells:
        return cell
    kept = str(cell)
    while kept and cell_len(kept) > cells - 1:
        kept = kept[:-1]
    return Styled(kept + CUT, _style(cell)) if cells > 0 else ""


def _printable(cell: str) -> str:
    """The text without line ends and codes: a failure's text may hold any."""
    if cell.isprintable():
        return cell
    return Styled("".join(it if it.isprintable() else "?" for it in cell), _style(cell))


def _style(piece: str) -> str:
    return piece.style if isinstance(piece, Styled) else ""


def _escaped(piece: str) -> str:
    codes = ";".join(_CODES[word] for word in _style(piece).split())
    return f"\x1b[{codes}m{piece}\x1b[0m" if codes else piece


def _needed(widths: Sequence[int], last: int | None = None) -> int:
    """The width of these columns side by side, with the last one as small as allowed."""
    if not widths:
        return 0
    end = min(widths[-1], MIN_LAST) if last is None else widths[-1] + GAP
    return sum(width + GAP for width in widths[:-1]) + end
