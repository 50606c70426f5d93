"""Templates of HTML pages, and their style sheet: the files in `templates/`.

Owns how they are loaded and rendered. The modules of pages compute the values; every value is escaped, except
the pictures that a template marks as safe. A name that a template uses and that it was not given raises.
"""

import functools
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

Cell = str | int | float
Row = Sequence[Cell]
"""Cells of a line of a table; whole numbers are shown with separators of thousands."""


def render(template: str, **values: object) -> str:
    """The page that this template makes of these values."""
    return _environment().get_template(f"{template}.html.jinja").render(values)


def style_sheet() -> str:
    """The style of all pages. It begins with the colours, which single pictures use too."""
    return resources.files("gleaner.rlctl").joinpath("templates", "style.css").read_text(encoding="utf-8")


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # commands that make no page go without

    environment = Environment(
        loader=PackageLoader("gleaner.rlctl", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = _cell
    return environment


def _cell(value: Cell) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
