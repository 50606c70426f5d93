"""`rlctl ps`: every actor and child process of a cluster, in one table."""

import argparse
from collections.abc import Sequence

import msgspec
from rich.text import Text

from rlctl.board import mailbox
from rlctl.client import Processes
from rlctl.columns import Cell, Column, fitted
from rlctl.commands.terminal import (
    Subparsers,
    add_cluster,
    add_command,
    add_deadline,
    add_json,
    console,
    look_at_processes,
    print_json,
    tell_silent,
)
from rlctl.errors import OK
from rlctl.targets import AGENT
from supervisor.system_messages import ActorState, SystemState

_DESCRIPTION = """\
Show every actor of a cluster: where it is, in which incarnation, how it is, what it has handled.

INC is the incarnation, a number that grows with each start. MAILBOX is how many messages wait, and the limit;
RATE/s is of the last seconds; RESTARTS and LAST FAILURE are what its supervisor counted. Rows with a pid are
processes. An actor whose process does not answer has the state "no answer", one whose process others have not
heard for unusually long "suspect". A narrow terminal shows fewer
columns, a pipe all of them. Exit code 3: nothing runs."""

_EXAMPLES = """\
  rlctl ps                          the run that goes on in this folder
  rlctl ps --run quickstart-2025
  rlctl ps --json
  rlctl ps --head tcp://10.0.0.1:7700 --head-key head.public --keys keys/laptop"""

SHOWN_CELLS = 60
_COLUMNS = (
    Column("NODE"),
    Column("PROCESS", spare=4),
    Column("ACTOR"),
    Column("INC", right=True, spare=6),
    Column("STATE"),
    Column("MAILBOX", right=True, spare=1),
    Column("RATE/s", right=True, spare=2),
    Column("HANDLED", right=True, spare=5),
    Column("DROPPED", right=True, spare=7),
    Column("RESTARTS", right=True, spare=3),
    Column("LAST FAILURE"),
)


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands, "ps", ps, help="show every actor", description=_DESCRIPTION, examples=_EXAMPLES
    )
    add_cluster(parser)
    add_deadline(parser)
    add_json(parser)


def ps(args: argparse.Namespace) -> int:
    """Do it."""
    seen = look_at_processes(args)
    if args.json:
        print_json({"processes": msgspec.to_builtins(seen.states), "silent": seen.silent})
    else:
        out = console()
        out.print(fitted(_COLUMNS, rows(seen), out.width))
        left_out = sum(state.left_out for state in seen.states)
        if left_out:
            out.print(f"and {left_out} more actors, which their processes left out")
        tell_silent(seen.silent, out)
    return OK


def rows(seen: Processes) -> list[Sequence[Cell]]:
    """One row for each actor and child process."""
    suspects = {endpoint for state in seen.states for endpoint in state.suspects}
    shown = [
        row(state, actor, suspected=state.endpoint in suspects)
        for state in seen.states
        for actor in state.actors
    ]
    return shown + [silent_row(name) for name in seen.silent]


def row(state: SystemState, actor: ActorState, *, suspected: bool = False) -> Sequence[Cell]:
    """The cells of an actor or a child process; `suspected`: another process doubts that this one lives."""
    process = bool(actor.pid)
    shown_state = "suspect" if suspected and not process and actor.state == "running" else actor.state
    return [
        state.node,
        state.process,
        actor.name if not process else f"{actor.name} (pid {actor.pid})",
        "-" if process else str(actor.incarnation),
        Text(shown_state, style="" if shown_state == "running" else "yellow"),
        "-" if process else mailbox(actor),
        "-" if process else f"{actor.rate:,.1f}",
        "-" if process else str(actor.handled),
        "-" if process else str(actor.dropped),
        str(actor.restarts),
        Text(
            " ".join(actor.last_failure.split())[:SHOWN_CELLS] or "-",
            style="red" if actor.last_failure else "",
        ),
    ]


def silent_row(name: str) -> Sequence[Cell]:
    """An actor or a process that should be there, and does not answer."""
    node = name.partition("/")[0] if name.endswith((f"/{AGENT}", ")")) else "?"  # of other names, who knows
    return [node, "?", name, "?", Text("no answer", style="bold red"), *("?" * 5), "-"]
