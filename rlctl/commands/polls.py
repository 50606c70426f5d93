"""Polls of live views: their options, their output without a terminal, and the wait between two of them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from gleaner.rlctl.commands.terminal import console, print_json
from gleaner.rlctl.errors import usage

if TYPE_CHECKING:  # its import takes longer than the help of the command
    from rich.console import Console

MIN_INTERVAL_S = 0.1


def add_polls(parser: argparse.ArgumentParser) -> None:
    """Declare --interval and --once."""
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between two polls (default: 1)"
    )
    parser.add_argument("--once", action="store_true", help="print one poll and end")


def check_interval(args: argparse.Namespace) -> None:
    """Raises CommandError for an interval that is too short, or no number."""
    if not args.interval >= MIN_INTERVAL_S:
        raise usage(f"--interval {args.interval:g}: expected {MIN_INTERVAL_S:g} or more")


def print_poll(args: argparse.Namespace, plain: object, show: Callable[[Console], None]) -> None:
    """Print the result of a poll: with --json `plain`, as one line if others follow; otherwise what `show`
    prints, below the time if others follow."""
    if args.json and args.once:
        print_json(plain)
    elif args.json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(plain).decode() + "\n")
    else:
        out = console()
        if not args.once:
            out.print(datetime.now().strftime("%H:%M:%S"))
        show(out)
    sys.stdout.flush()


async def is_set_within(pressed: asyncio.Event, interval_s: float) -> bool:
    """Wait for a key, at most until the next poll is due; returns whether one was pressed."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(pressed.wait(), interval_s)
    return pressed.is_set()
