"""`rlctl reward top`: live view of the reward tier, refreshed until `q` or Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from gleaner.rlctl.commands import reward_state
from gleaner.rlctl.commands.polls import add_polls, check_interval, is_set_within, print_poll
from gleaner.rlctl.commands.terminal import Subparsers, add_command, console, run_async
from gleaner.rlctl.errors import OK, CommandError

if TYPE_CHECKING:
    from rich.console import Console, Group

    from gleaner.actors.protocol.reward import RewardState

    Poll = Callable[[], Awaitable[RewardState]]

_DESCRIPTION = """\
Show the reward tier live: the tables of `rlctl reward ps`, again every interval.

In a terminal q leaves. Without one, the tables are written as plain text every interval, with --json as one
object a line. A poll without an answer is shown with its reason, and the view goes on: a proxy that restarts
is back in seconds. If the first poll has no answer, the exit code is 3."""

_EXAMPLES = """\
  rlctl reward top
  rlctl reward top --interval 0.5
  rlctl reward top --once
  rlctl reward top --url http://127.0.0.1:8900
  rlctl reward top --json | jq '.stages[] | {name, queued}'"""


def add(kinds: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        kinds, "top", top, help="show the same live", description=_DESCRIPTION, examples=_EXAMPLES
    )
    add_polls(parser)
    reward_state.add_place(parser)


def top(args: argparse.Namespace) -> int:
    """Run the command."""
    check_interval(args)

    async def look() -> None:
        async with reward_state.asking(args) as poll:
            first = await poll()
            if args.once or args.json or not sys.stdout.isatty():
                await _plain(poll, first, args)
            else:
                await _live(poll, first, args.interval)

    run_async(look())
    return OK


async def _plain(poll: Poll, state: RewardState, args: argparse.Namespace) -> None:
    def show(out: Console) -> None:
        out.print(reward_state.tables(state, out.width))

    while True:
        print_poll(args, state, show)
        if args.once:
            return
        state = await _next(poll, args.interval)


async def _next(poll: Poll, interval_s: float) -> RewardState:
    """The state after the interval, as soon as a poll is answered."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            return await poll()
        except CommandError as problem:
            sys.stderr.write(f"{problem}\n")
            sys.stderr.flush()


async def _live(poll: Poll, state: RewardState, interval_s: float) -> None:
    from rich.live import Live

    from gleaner.rlctl.commands.terminal_keys import typed_keys

    out, left, problem = console(), asyncio.Event(), ""

    def pressed(keys: str) -> None:
        if "q" in keys.lower():
            left.set()

    def shown() -> Group:
        return reward_state.tables(state, out.width, problem)

    with typed_keys(pressed), Live(shown(), console=out, screen=True, auto_refresh=False) as live:
        while not left.is_set():
            live.update(shown(), refresh=True)
            if await is_set_within(left, interval_s):
                return
            try:
                state, problem = await poll(), ""
            except CommandError as fault:  # a proxy that restarts: the last state stays
                problem = str(fault)
