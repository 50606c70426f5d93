"""`rlctl ps`: every actor and child process of a cluster, in one table."""

import argparse
import sys

from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_cluster,
    add_command,
    add_deadline,
    add_json,
    look_at_processes,
    silent_line,
)
from gleaner.rlctl.errors import OK
from gleaner.rlctl.plain_output import print_plain_json, print_table, screen_width
from gleaner.rlctl.process_table import table

_DESCRIPTION = """\
Show every actor of a cluster: its process, its incarnation, its state, its counts of messages.

INC is the incarnation, a number that grows with each start. MAILBOX is the number of waiting messages, and
the limit; RATE/s is of the last seconds; RESTARTS and LAST FAILURE are the counts of its supervisor. Rows
with a pid are processes. An actor whose process does not answer has the state "no answer"; an actor whose
process has been silent to others for unusually long has the state "suspect". A narrow terminal shows fewer
columns, a pipe all of them. Exit code 3: nothing runs."""

_EXAMPLES = """\
  rlctl ps                          the active run of this folder
  rlctl ps --run quickstart-2025
  rlctl ps --json
  rlctl ps --head tcp://10.0.0.1:7700 --head-key head.public --keys keys/laptop"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(commands, "ps", ps, description=_DESCRIPTION, examples=_EXAMPLES)
    add_cluster(parser)
    add_deadline(parser)
    add_json(parser)


def ps(args: argparse.Namespace) -> int:
    """Run the command."""
    seen = look_at_processes(args)
    if args.json:
        print_plain_json({"processes": seen.states, "silent": seen.silent})
        return OK
    print_table(table(seen, screen_width()))
    left_out = sum(state.left_out for state in seen.states)
    if left_out:
        sys.stdout.write(f"and {left_out} more actors, which their processes left out\n")
    if seen.silent:
        sys.stdout.write(silent_line(seen.silent) + "\n")
    return OK
