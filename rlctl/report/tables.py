"""Tables, figures and remarks of an HTML page. Pure; all outside text is escaped."""

from collections.abc import Iterable, Sequence
from html import escape

Cell = str | int | float


def table(names: Sequence[str], rows: Iterable[Sequence[Cell]], numbers: set[int]) -> str:
    """A table with this head; the columns of `numbers` are aligned right."""

    def cell(tag: str, index: int, value: Cell) -> str:
        text = f"{value:,}" if isinstance(value, int) else str(value)
        kind = ' class="number"' if index in numbers else ""
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    head = "".join(cell("th", index, name) for index, name in enumerate(names))
    lines = ("".join(cell("td", index, value) for index, value in enumerate(row)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def figure(svg: str, caption: str) -> str:
    """A picture with its caption."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def absent(text: str) -> str:
    """A remark in place of missing contents."""
    return f'<p class="muted">{escape(text)}</p>'
