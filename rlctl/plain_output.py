"""Fast standard output: tables and JSON without a terminal library or a codec."""

import json
import os
import sys
from types import SimpleNamespace

from gleaner.rlctl.columns import Table

PIPE_WIDTH = 200  # cells of a line where there is no terminal
TERMINAL_WIDTH = 80  # where a terminal does not report its width
_DUMB = (None, "", "dumb", "unknown")  # of TERM, for a terminal that knows no styles


def print_plain_json(value: object) -> None:
    """One JSON object; an answer from the head's socket is printed unchanged."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=_plain) + "\n")


def _plain(value: object) -> object:
    if isinstance(value, SimpleNamespace):
        return vars(value)
    import msgspec  # of a message that it decoded itself

    return msgspec.json.decode(msgspec.json.encode(value))


def print_table(table: Table) -> None:
    """Print a table, with styles where standard output is a terminal."""
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") in _DUMB
    sys.stdout.write(table.text(styled=not plain))


def screen_width() -> int:
    """Width of standard output in cells; a file or a pipe has no width limit."""
    if not sys.stdout.isatty():
        return PIPE_WIDTH
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or TERMINAL_WIDTH
    except OSError:
        return TERMINAL_WIDTH
