"""`rlctl top`: live view of a cluster, refreshed until `q` or Ctrl-C."""

import argparse
import asyncio
import contextlib
import sys
from dataclasses import dataclass
from datetime import datetime

import msgspec
from rich.live import Live

from gleaner.nodeagent.cluster_view import Processes
from gleaner.rlctl.board import KEYS, SORTS, Board, Meter, render
from gleaner.rlctl.client import Cluster
from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_cluster,
    add_command,
    add_deadline,
    add_json,
    chosen_cluster,
    console,
    deadline,
    print_json,
    run_async,
)
from gleaner.rlctl.commands.terminal_keys import typed_keys
from gleaner.rlctl.errors import OK, usage
from gleaner.supervisor import AskFailed

_DESCRIPTION = """\
Show live figures of a cluster: processes with their processor time, memory and loop lag, and actors with
mailboxes, message rates, waits and restarts.

LAG is the longest time in the last ten seconds for which the event loop of a process was held up; meanwhile
none of its actors can run. OLDEST is the longest wait on another component. In a terminal the keys m, r, w,
f, n sort by mailbox, rate, waits, failures (restarts) and name, q leaves. Without one, the same tables are
written as plain text every interval. A process that does not answer is named in red."""

_EXAMPLES = """\
  rlctl top
  rlctl top --sort mailbox --interval 0.5
  rlctl top --once
  rlctl top --json --once
  rlctl top --head tcp://10.0.0.1:7700 --head-key head.public --keys keys/laptop"""

MIN_INTERVAL_S = 0.1
ONCE_S = 1.0  # at most, between the two polls of --once


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(commands, "top", top, description=_DESCRIPTION, examples=_EXAMPLES)
    parser.add_argument(
        "--sort", choices=list(SORTS), default="rate", help="order of the actors (default: rate)"
    )
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between two polls (default: 1)"
    )
    parser.add_argument("--once", action="store_true", help="print one poll and end")
    add_cluster(parser)
    add_deadline(parser)
    add_json(parser)


def top(args: argparse.Namespace) -> int:
    """Run the command."""
    if not args.interval >= MIN_INTERVAL_S:
        raise usage(f"--interval {args.interval:g}: expected {MIN_INTERVAL_S:g} or more")

    async def look() -> None:
        async with chosen_cluster(args) as cluster:
            if args.once:
                await _once(cluster, args)
            elif args.json or not sys.stdout.isatty():
                await _plain(cluster, args)
            else:
                await _live(cluster, args)

    run_async(look())
    return OK


async def _once(cluster: Cluster, args: argparse.Namespace) -> None:
    meter = Meter()
    await _board(cluster, meter, deadline(args))
    await asyncio.sleep(min(args.interval, ONCE_S))  # shares and rates need two polls
    _print(await _board(cluster, meter, deadline(args)), args)


async def _plain(cluster: Cluster, args: argparse.Namespace) -> None:
    meter = Meter()
    while True:
        _print(await _board(cluster, meter, deadline(args)), args)
        await asyncio.sleep(args.interval)


async def _board(cluster: Cluster, meter: Meter, deadline_s: float) -> Board:
    return meter.observe(await cluster.processes(deadline_s))


def _print(board: Board, args: argparse.Namespace) -> None:
    if args.json:
        plain = as_json(board)
        if args.once:
            print_json(plain)
        else:
            sys.stdout.write(msgspec.json.encode(plain).decode() + "\n")
    else:
        out = console()
        if not args.once:
            out.print(datetime.now().strftime("%H:%M:%S"))
        out.print(render(board, args.sort, out.width))
        out.print()
    sys.stdout.flush()


def as_json(board: Board) -> dict[str, object]:
    """The board as a JSON object."""
    return {
        "processes": [
            {**msgspec.to_builtins(line.state), "cpu": line.cpu, "rate": line.rate}
            for line in board.processes
        ],
        "rates": {line.actor.name: line.rate for line in board.actors},
        "silent": board.silent,
    }


async def _live(cluster: Cluster, args: argparse.Namespace) -> None:
    out = console()
    meter, view, wake = Meter(), _View(args.sort), asyncio.Event()

    def pressed(keys: str) -> None:
        view.press(keys)
        wake.set()

    board = await _board(cluster, meter, deadline(args))
    with (
        typed_keys(pressed),
        Live(console=out, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while not view.over:
            live.update(render(board, view.sort, out.width, out.height), refresh=True)
            wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), args.interval)
                continue  # a key was pressed: the same poll, sorted anew
            try:
                board = await _board(cluster, meter, deadline(args))
            except AskFailed:  # the head does not answer: only the last known processes are left
                board = meter.observe(Processes([], [line.actor.name for line in board.actors]))


@dataclass(slots=True)
class _View:
    """State set by the keys."""

    sort: str
    over: bool = False

    def press(self, keys: str) -> None:
        """Handle the pressed keys."""
        for key in keys.lower():
            self.over = self.over or key == "q"
            self.sort = KEYS.get(key, self.sort)
