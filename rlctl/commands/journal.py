"""`rlctl journal inspect|verify|export`: contents and faults of actors' journals."""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import msgspec
from rich.table import Table
from rich.text import Text

from gleaner.rlctl import journals
from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_json, console, print_json
from gleaner.rlctl.errors import FAILED, OK, failed, usage
from gleaner.supervisor import JournalError
from gleaner.supervisor.journal.store_choice import view

_DESCRIPTION = """\
Inspect, verify or export journals: the durable state of actors. The command never writes to them, and a
journal may be read while its process runs.

inspect   streams: their writer's incarnation, events, bytes, snapshot, kinds with their versions; with
          --tail the newest events. A stream with a LONG tail takes no snapshots: its replay takes long.
verify    checksums, gaps, pages; rows of a newer program. Exit code 1 where a fault is found.
export    every row as a line of JSON, in the order of a replay, to standard output or --out. Bytes are
          {"base64": ...}. Rows of a damaged journal are exported as they are, with "whole": false where one
          fails its checksum (exit code 1).

PLACE is a journal file, a folder (a state directory, a run: every journal in it), or the URL of a database,
whose streams are named SPACE: STREAM."""

_EXAMPLES = """\
  rlctl journal inspect runs/first
  rlctl journal inspect ~/.local/state/gleaner/head --stream scheduler --tail 5
  rlctl journal verify runs/first --json
  rlctl journal export runs/first/nodes/head/journal/first/rollout.sqlite --stream ledger --out ledger.jsonl
  rlctl journal inspect postgresql://gleaner@db.example/gleaner"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "journal",
        journal,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "action", choices=("inspect", "verify", "export"), help="the action, as described above"
    )
    parser.add_argument("places", nargs="+", metavar="PLACE", help="file, folder or postgresql:// URL")
    parser.add_argument("--stream", default="", metavar="TEXT", help="only streams whose name contains it")
    parser.add_argument("--tail", type=int, default=0, metavar="N", help="inspect: show the N newest events")
    parser.add_argument("--out", type=Path, metavar="FILE", help="export: write to this file")
    add_json(parser)


def journal(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.tail < 0:
        raise usage(f"--tail {args.tail}: expected a number ≥ 0")
    places = journals.places(args.places)
    try:
        return {"inspect": _inspect, "verify": _verify, "export": _export}[args.action](places, args)
    except JournalError as problem:
        raise failed(str(problem)) from problem


def _inspect(places: list[str], args: argparse.Namespace) -> int:
    found: list[journals.Shown] = []
    for place in places:
        with view(place) as opened:
            streams = list(journals.describe(opened, args.stream, args.tail))
            found.append({"place": opened.place, "layout": opened.layout, "streams": streams})
    if args.json:
        print_json({"journals": found})
        return OK
    out = console()
    for one in found:
        out.print(f"{one['place']} (layout {one['layout']})", markup=False)
        out.print(_table(one["streams"]))
        for stream in one["streams"]:
            for event in stream["newest"]:
                fields = msgspec.json.encode(event["fields"]).decode()
                head = f"  {event['stream']} #{event['seq']} {event['kind']} v{event['version']}"
                out.print(f"{head} {fields}", markup=False)
    return OK


def _verify(places: list[str], args: argparse.Namespace) -> int:
    verdicts: list[journals.Shown] = []
    for place in places:
        try:
            with view(place) as opened:
                wrong = list(journals.faults(opened, args.stream))
                verdicts.append({"place": opened.place, "ok": not wrong, "faults": wrong})
        except JournalError as problem:
            verdicts.append({"place": place, "ok": False, "faults": [{"stream": "", "fault": str(problem)}]})
    ok = all(verdict["ok"] for verdict in verdicts)
    if args.json:
        print_json({"ok": ok, "journals": verdicts})
        return OK if ok else FAILED
    out = console()
    for verdict in verdicts:
        out.print(f"{'whole  ' if verdict['ok'] else 'DAMAGED'}  {verdict['place']}", markup=False)
        for fault in verdict["faults"]:
            out.print(f"    {fault['fault']}", markup=False)
    return OK if ok else FAILED


def _export(places: list[str], args: argparse.Namespace) -> int:
    whole = True
    with ExitStack() as closing:
        out: IO[str] = sys.stdout
        if args.out is not None:
            out = closing.enter_context(args.out.open("w"))
        for place in places:
            with view(place) as opened:
                for record in journals.records(opened, args.stream):
                    whole = whole and record["whole"]
                    line = {"journal": opened.place, **record} if len(places) > 1 else record
                    out.write(msgspec.json.encode(line).decode() + "\n")
    return OK if whole else FAILED


def _table(streams: list[journals.Shown]) -> Table:
    shown = Table(box=None, pad_edge=False)
    for name in ("STREAM", "INCARNATION", "LAST", "SNAPSHOT", "TAIL", "BYTES", "KINDS"):
        right = name in ("INCARNATION", "LAST", "TAIL", "BYTES")
        shown.add_column(name, justify="right" if right else "left", overflow="fold")
    for stream in streams:
        kinds = ", ".join(
            f"{it['kind']} v{it['version']} x{it['count']}{' (newer)' if it['known'] is False else ''}"
            for it in stream["kinds"]
        )
        snapshot = "-" if stream["snapshot"] is None else f"{stream['snapshot']} at {stream['snapshot_seq']}"
        tail = f"{stream['tail']}{' LONG' if stream['tail_is_long'] else ''}"
        row = (stream["stream"], stream["incarnation"], stream["last_seq"], snapshot, tail, stream["bytes"])
        shown.add_row(*(Text(str(cell)) for cell in row), Text(kinds or "-"))
    return shown
