"""`rlctl kill`: send a signal to a process of a cluster, to see it come back."""

import argparse
import os
import signal
import sys
from typing import TYPE_CHECKING

from rlctl.commands.terminal import (
    Subparsers,
    add_cluster,
    add_command,
    add_json,
    chosen_cluster,
    print_json,
    run_async,
)
from rlctl.errors import OK, CommandError, failed, nothing, usage
from rlctl.runs import find_driven

if TYPE_CHECKING:  # where nothing runs, none of it is needed
    from rlctl.client import Cluster
    from rlctl.targets import Target

_DESCRIPTION = """\
Send a signal to a process: to see what the system does when it dies.

TARGET is an actor (the process that it lives in is meant), a process (rollout, reward, trainer, or
spot-1/engine where several have the name), or a host (its node agent; everything on it dies with it).
A process is signalled by the node agent that owns it. A host can be killed on its own machine only."""

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
    """Do it."""
    number = signal_number(args.signal)

    async def send() -> "Target":
        async with chosen_cluster(args) as cluster:
            from rlctl.targets import resolve

            target = resolve(args.target, (await cluster.processes()).states)
            await _send(cluster, target, number, args)
            return target

    target = run_async(send())
    if args.json:
        print_json({"node": target.node, "process": target.process, "pid": target.pid, "signal": number.name})
    else:
        sys.stdout.write(f"{number.name} to {target} (pid {target.pid})\n")
    return OK


async def _send(
    cluster: "Cluster", target: "Target", number: signal.Signals, args: argparse.Namespace
) -> None:
    from actors.cluster.messages import KillChild
    from supervisor import Done

    if target.process == "agent":
        _kill_host(target, number, args)
        return
    message = KillChild(child=target.process, signal=int(number))
    await cluster.ask(f"{target.node}/agent", message, expect=Done)


def _kill_host(target: "Target", number: signal.Signals, args: argparse.Namespace) -> None:
    if args.head:
        raise usage(f"{target.node} is a host elsewhere: kill its node agent there, or use `rlctl preempt`")
    if target.node == "head":
        raise usage("head: the run cannot go on without it; stop the run with Ctrl-C in its rlctl")
    from nodeagent.exit_codes import CannotRun
    from nodeagent.files import find_agent

    run = find_driven(args.runs_dir, args.run_name)
    try:
        agent = find_agent(run.nodes / target.node)
    except CannotRun as problem:
        raise nothing(str(problem)) from problem
    try:
        os.kill(agent.pid, number)
    except ProcessLookupError:
        raise nothing(f"{target.node} (pid {agent.pid}) has just ended") from None
    except PermissionError as problem:
        raise failed(f"{target.node} (pid {agent.pid}): {problem.strerror}") from problem


def signal_number(text: str) -> signal.Signals:
    """A signal by name, with or without SIG, or by number. Raises CommandError."""
    try:
        if text.isdigit():
            return signal.Signals(int(text))
        return signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"]
    except (KeyError, ValueError):
        raise bad_signal(text) from None


def bad_signal(text: str) -> CommandError:
    """For a signal that this system does not have."""
    return usage(f"--signal {text}: no such signal; use KILL, TERM, STOP, CONT, or a number")
