"""`rlctl tap`: live view of a cluster's messages, decoded."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from datetime import datetime

import msgspec
from rich.console import Console
from rich.text import Text

from gleaner.rlctl.client import Cluster
from gleaner.rlctl.cluster_tap import reader_name, tapping
from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_cluster,
    add_command,
    add_json,
    chosen_cluster,
    console,
    run_async,
)
from gleaner.rlctl.errors import OK, usage
from gleaner.supervisor.inspection.tap import MAX_RATE, Direction, StartTap, TapRecord, TapRecords

_DESCRIPTION = """\
Show the messages between actors as they pass, in every process of the cluster, until Ctrl-C.

Each line is: time, sender -> receiver, type (tell, ask, reply, error), kind, fields. A message between two
processes is shown once, where it arrives (see --all). GLOB is a pattern such as "rollout/*"; quote it. Long
fields are cut. The rate is bounded in each process: messages beyond it are skipped there, and counted here.
A tap that is not in use costs nothing."""

_EXAMPLES = """\
  rlctl tap --actor "rollout/*"
  rlctl tap --kind "Dispatch*" --count 5
  rlctl tap --actor spot-1/engine --seconds 10 --json
  rlctl tap --kind KillChild --rate 1000"""

ALL: tuple[Direction, ...] = ("in", "local", "out")
ARRIVING: tuple[Direction, ...] = ("in", "local")
_STYLES = {"ask": "cyan", "reply": "green", "error": "bold red"}


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(commands, "tap", tap, description=_DESCRIPTION, examples=_EXAMPLES)
    parser.add_argument("--actor", default="*", metavar="GLOB", help="only messages to or from these actors")
    parser.add_argument("--kind", default="*", metavar="GLOB", help="only messages of these kinds")
    parser.add_argument("--count", type=int, metavar="N", help="stop after N messages")
    parser.add_argument("--seconds", type=float, metavar="S", help="stop after S seconds")
    parser.add_argument(
        "--rate",
        type=float,
        default=100.0,
        metavar="N",
        help="limit of messages per second and process (default: 100)",
    )
    parser.add_argument("--all", action="store_true", help="show messages where they leave a process, too")
    add_cluster(parser)
    add_json(parser)


def tap(args: argparse.Namespace) -> int:
    """Run the command."""
    for name, value in (("--count", args.count), ("--seconds", args.seconds)):
        if value is not None and not value > 0:
            raise usage(f"{name} {value}: expected a number above 0")
    if not 1 <= args.rate <= MAX_RATE:
        raise usage(f"--rate {args.rate:g}: expected 1 to {MAX_RATE:g}")

    async def look() -> int:
        async with chosen_cluster(args) as cluster:
            return await _show(cluster, args)

    seen = run_async(look())
    if not seen and not args.json:
        sys.stderr.write("no such message passed\n")
    return OK


async def _show(cluster: Cluster, args: argparse.Namespace) -> int:
    wanted = StartTap(
        reader=reader_name(),
        actor=args.actor,
        kind=args.kind,
        directions=ALL if args.all else ARRIVING,
        rate=args.rate,
    )
    out = console()
    seen = 0
    try:
        async with asyncio.timeout(args.seconds), tapping(cluster, wanted) as passed:
            async for records in passed:
                left = None if args.count is None else args.count - seen
                shown = records.records[:left]
                _print(msgspec.structs.replace(records, records=shown), out, as_json=args.json)
                seen += len(shown)
                if args.count is not None and seen >= args.count:
                    return seen
    except TimeoutError:
        return seen
    return seen


def _print(records: TapRecords, out: Console, *, as_json: bool) -> None:
    lag_s = time.time() - records.now_s  # converts the process's loop time into this machine's wall clock
    for record in records.records:
        at_s = record.t_s + lag_s
        if as_json:
            sys.stdout.write(json.dumps(as_object(record, records, at_s), ensure_ascii=False) + "\n")
        else:
            out.print(line(record, at_s), overflow="ellipsis", no_wrap=True, soft_wrap=not out.is_terminal)
    if records.skipped:
        place = f"{records.node}/{records.process}"
        if as_json:
            skipped = {"node": records.node, "process": records.process, "skipped": records.skipped}
            sys.stdout.write(json.dumps(skipped) + "\n")
        else:
            out.print(f"… {records.skipped} more on {place}, skipped: narrow the filter, or raise --rate")
    sys.stdout.flush()


def line(record: TapRecord, at_s: float) -> Text:
    """One message. at_s: wall clock."""
    clock = datetime.fromtimestamp(at_s).strftime("%H:%M:%S.%f")[:-3]
    body = "" if record.body == "{}" else f" {record.body}"
    parts: Sequence[str | tuple[str, str]] = (
        (clock, "dim"),
        f" {_name(record.source)} -> {_name(record.to)} ",
        (record.mode, _STYLES.get(record.mode, "")),
        (f" {record.kind}", "bold"),
        body,
    )
    return Text.assemble(*parts)


def as_object(record: TapRecord, records: TapRecords, at_s: float) -> dict[str, object]:
    """One message as a JSON object. `time`: seconds since 1970 by this machine's clock."""
    return {
        "time": at_s,
        "node": records.node,
        "process": records.process,
        "direction": record.direction,
        "mode": record.mode,
        "source": record.source,
        "to": record.to,
        "kind": record.kind,
        "body": json.loads(record.body),
    }


def _name(name: str) -> str:
    return "(runtime)" if not name or name.startswith("$") else name
