"""Benchmark table: rows of what, unit, ours, peer, peer_value, ratio.

This is the one form of every benchmark. Owns the command line (`--json FILE`), the table and the file. Does
not measure.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison, both values in `unit`; higher is better unless `unit` is a time."""

    what: str
    unit: str
    ours: float
    peer: str
    peer_value: float

    @property
    def ratio(self) -> float:
        """Ours over the peer's."""
        return self.ours / self.peer_value if self.peer_value else float("nan")


def run(name: str, about: str, measure: Callable[[], Sequence[Row]]) -> None:
    """Parse the command line, measure, print the table and write the rows."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=about)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here, as a list of objects")
    arguments = parser.parse_args()
    rows = measure()
    table = Table("what", "unit", "peer", title=about)
    for column in ("ours", "peer's", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.what, row.unit, row.peer, f"{row.ours:,.4g}", f"{row.peer_value:,.4g}", f"{row.ratio:.2f}"
        )
    Console(width=120).print(table)
    if arguments.json is not None:
        listed = [{**asdict(row), "ratio": row.ratio} for row in rows]
        arguments.json.write_text(json.dumps(listed, indent=2) + "\n")
