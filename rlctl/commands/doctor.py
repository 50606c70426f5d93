"""`rlctl doctor`: capabilities of this host and what it lacks."""

import argparse
from dataclasses import asdict
from pathlib import Path

from rich.table import Table
from rich.text import Text

from gleaner.nodeagent.files import state_base
from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_command,
    add_json,
    add_runs_dir,
    console,
    print_json,
)
from gleaner.rlctl.doctor import Row, examine
from gleaner.rlctl.doctor_keys import examine_keys
from gleaner.rlctl.errors import FAILED, OK

_DESCRIPTION = """\
Check this host: Python, packages, ZeroMQ, torch, GPUs, memory, disk, limits, kernel, isolation, ports, clock;
own and trusted keys, which of them are in force; unencrypted traffic, and why it is allowed.

Each row is ok, warn (it works without, or less well) or missing (a run would fail), with what to do about it.
Exit code 1 only when a necessary part is missing. Nothing is changed."""

_EXAMPLES = """\
  rlctl doctor
  rlctl doctor --keys /etc/gleaner/keys --state-dir /var/lib/gleaner/spot-7
  rlctl doctor --json | jq '.rows[] | select(.verdict != "ok")'"""

STYLES = {"ok": "green", "warn": "yellow", "missing": "bold red"}


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "doctor",
        doctor,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    add_runs_dir(parser)
    parser.add_argument(
        "--keys",
        type=Path,
        metavar="DIR",
        help="key directory, or folder of several, to check (default: of the node agents that run here)",
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="state directory of a node agent to ask; repeated (default: the usual ones, and of runs)",
    )
    add_json(parser)


def doctor(args: argparse.Namespace) -> int:
    """Run the command."""
    rows = [*examine(args.runs_dir), *examine_keys(args.keys, args.state_dir or usual(args.runs_dir))]
    missing = [row for row in rows if row.verdict == "missing"]
    if args.json:
        print_json({"ok": not missing, "rows": [asdict(row) for row in rows]})
    else:
        out = console()
        out.print(table(rows))
        if missing:
            out.print(Text(f"{len(missing)} needed things are missing", style="bold red"))
        else:
            out.print("this host can run Gleaner: rlctl run quickstart")
    return FAILED if missing else OK


def usual(runs_dir: Path) -> list[Path]:
    """State directories in which a node agent may run on this host."""
    return sorted([*state_base().glob("*"), *runs_dir.glob("*/nodes/*")])


def table(rows: list[Row]) -> Table:
    """The table."""
    shown = Table(box=None, pad_edge=False)
    for name in ("", "WHAT", "FOUND", "TO DO"):
        shown.add_column(name, overflow="fold")
    for row in rows:
        shown.add_row(Text(row.verdict, style=STYLES[row.verdict]), row.what, Text(row.found), Text(row.todo))
    return shown
