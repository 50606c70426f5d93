"""`rlctl top`: live view of a cluster, refreshed until `q` or Ctrl-C."""

import argparse
import asyncio
import sys
from dataclasses import dataclass

import msgspec
from rich.console import Console
from rich.live import Live

from gleaner.nodeagent.cluster_view import Processes
from gleaner.rlctl.board import KEYS, SORTS, Board, Meter, render
from gleaner.rlctl.client import Cluster
from gleaner.rlctl.commands.polls import add_polls, check_interval, is_set_within, print_poll
from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_cluster,
    add_command,
    add_deadline,
    add_json,
    chosen_cluster,
    console,
    deadline,
    run_async,
)
from gleaner.rlctl.commands.terminal_keys import typed_keys
from gleaner.rlctl.errors import OK
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

ONCE_S = 1.0  # at most, between the two polls of --once


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(commands, "top", top, description=_DESCRIPTION, examples=_EXAMPLES)
    parser.add_argument(
        "--sort", choices=list(SORTS), default="rate", help="order of the actors (default: rate)"
    )
    add_polls(parser)
    add_cluster(parser)
    add_deadline(parser)
    add_json(parser)


def top(args: argparse.Namespace) -> int:
    """Run the command."""
    check_interval(args)

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
    def show(out: Console) -> None:
        out.print(render(board, args.sort, out.width))
        out.print()

    print_poll(args, as_json(board), show)


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
            if await is_set_within(wake, args.interval):
                continue  # the same poll, sorted anew
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
