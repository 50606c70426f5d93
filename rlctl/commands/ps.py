"""`rlctl ps`: every actor and child process of a cluster, in one table."""

import argparse
from collections.abc import Sequence

import msgspec
from rich.table import Table
from rich.text import Text

from rlctl.commands.terminal import (
    Subparsers,
    add_cluster,
    add_command,
    add_json,
    console,
    look_at_processes,
    print_json,
    tell_silent,
)
from rlctl.errors import OK
from supervisor.system_messages import ActorState, SystemState

_DESCRIPTION = """\
Show every actor of a cluster: where it is, in which incarnation, how it is, what it has handled.

INC is the incarnation, a number that grows with each start. MAILBOX is how many messages wait; RESTARTS and
LAST FAILURE are what its supervisor counted. Rows with a pid are processes. Exit code 3: nothing runs."""

_EXAMPLES = """\
  rlctl ps                          the run that goes on in this folder
  rlctl ps --run quickstart-2025
  rlctl ps --json
  rlctl ps --head tcp://10.0.0.1:7700 --head-key head.public --keys keys/laptop"""

SHOWN_CELLS = 60


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands, "ps", ps, help="show every actor", description=_DESCRIPTION, examples=_EXAMPLES
    )
    add_cluster(parser)
    add_json(parser)


def ps(args: argparse.Namespace) -> int:
    """Do it."""
    seen = look_at_processes(args)
    if args.json:
        print_json({"processes": msgspec.to_builtins(seen.states), "silent": seen.silent})
    else:
        out = console()
        out.print(table(seen.states))
        tell_silent(seen, out)
    return OK


def table(states: Sequence[SystemState]) -> Table:
    """The table."""
    shown = Table(box=None, pad_edge=False)
    for name in ("NODE", "PROCESS", "ACTOR", "INC", "STATE", "MAILBOX", "HANDLED", "DROPPED", "RESTARTS"):
        shown.add_column(name, no_wrap=True, justify="left" if len(name) < 8 and name != "INC" else "right")
    shown.add_column("LAST FAILURE")
    for state in states:
        for actor in state.actors:
            shown.add_row(*(Text(cell) for cell in row(state, actor)))
    return shown


def row(state: SystemState, actor: ActorState) -> list[str]:
    """The cells of an actor or a child process."""
    process = bool(actor.pid)
    return [
        state.node,
        state.process,
        actor.name if not process else f"{actor.name} (pid {actor.pid})",
        "-" if process else str(actor.incarnation),
        actor.state,
        "-" if process else str(actor.mailbox),
        "-" if process else str(actor.handled),
        "-" if process else str(actor.dropped),
        str(actor.restarts),
        " ".join(actor.last_failure.split())[:SHOWN_CELLS] or "-",
    ]
