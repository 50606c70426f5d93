"""`rlctl kill`: sends a signal to a process of a cluster, to test its recovery."""

import argparse
import os
import signal
import sys

from gleaner.nodeagent.defaults import AGENT, LOOK_S
from gleaner.nodeagent.exit_codes import CannotRun
from gleaner.nodeagent.state_lock import holder
from gleaner.rlctl import control
from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_cluster,
    add_command,
    add_json,
    chosen_cluster,
    local_run,
    run_async,
)
from gleaner.rlctl.errors import OK, CommandError, failed, nothing, usage
from gleaner.rlctl.plain_output import print_plain_json
from gleaner.rlctl.runs import RunDir
from gleaner.rlctl.targets import Target, resolve

_DESCRIPTION = """\
Send a signal to a process, to test how the system recovers from its death.

TARGET is an actor (the signal goes to its process), a process (rollout, reward, trainer, or spot-1/engine
where several have the name), or a host (its node agent; all its processes die with it). The node agent that
owns a process sends it the signal. A host can be killed on its own machine only."""

_EXAMPLES = """\
  rlctl kill rollout/manager              SIGKILL to the process of RolloutManager
  rlctl kill spot-1/engine
  rlctl kill trainer --signal STOP        then --signal CONT
  rlctl kill spot-2                       a host, without notice; see also rlctl preempt"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "kill",
        kill,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("target", metavar="TARGET", help="actor, process or host")
    parser.add_argument("--signal", default="KILL", metavar="NAME", help="name or number (default: KILL)")
    add_cluster(parser)
    add_json(parser)


def kill(args: argparse.Namespace) -> int:
    """Run the command."""
    number = signal_number(args.signal)
    run = local_run(args)
    try:
        if run is None:
            raise control.NoControl
        target = _by_head(run, args.target, number)
    except control.NoControl:
        target = run_async(_by_network(args, number))
    if target.process == AGENT:
        _kill_host(target, number, run)
    if args.json:
        print_plain_json({**target._asdict(), "signal": number.name})
    else:
        sys.stdout.write(f"{number.name} to {target} (pid {target.pid})\n")
    return OK


def _by_head(run: RunDir, name: str, number: signal.Signals) -> Target:
    """Have the head of a run on this machine send the signal; this process signals hosts itself. Raises
    NoControl."""
    target = resolve(name, control.look(run.head, LOOK_S).states)
    if target.process != AGENT:
        control.kill(run.head, target.node, target.process, int(number))
    return target


async def _by_network(args: argparse.Namespace, number: signal.Signals) -> Target:
    """Send the signal as a client of the cluster."""
    async with chosen_cluster(args) as cluster:
        from gleaner.actors.protocol.cluster import KillChild
        from gleaner.supervisor import Done

        target = resolve(args.target, (await cluster.processes()).states)
        if target.process != AGENT:
            order = KillChild(child=target.process, signal=int(number))
            await cluster.ask(f"{target.node}/{AGENT}", order, expect=Done)
        return target


def _kill_host(target: Target, number: signal.Signals, run: RunDir | None) -> None:
    if run is None:
        raise usage(f"{target.node} is a host elsewhere: kill its node agent there, or use `rlctl preempt`")
    if target.node == "head":
        raise usage("head: the run cannot go on without it; stop the run with Ctrl-C in its rlctl")
    try:
        pid = holder(run.nodes / target.node)
    except CannotRun as problem:
        raise nothing(str(problem)) from problem
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise nothing(f"{target.node} (pid {pid}) has just ended") from None
    except PermissionError as problem:
        raise failed(f"{target.node} (pid {pid}): {problem.strerror}") from problem


def signal_number(text: str) -> signal.Signals:
    """A signal by name, with or without SIG, or by number. Raises CommandError."""
    try:
        if text.isdigit():
            return signal.Signals(int(text))
        return signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"]
    except (KeyError, ValueError):
        raise bad_signal(text) from None


def bad_signal(text: str) -> CommandError:
    """The error for a signal that this system does not have."""
    return usage(f"--signal {text}: no such signal; use KILL, TERM, STOP, CONT, or a number")
