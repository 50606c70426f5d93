"""`rlctl tree`: supervision tree of a cluster, host by host."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text
from rich.tree import Tree

from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_cluster,
    add_command,
    add_deadline,
    add_json,
    console,
    look_at_processes,
    tell_silent,
)
from gleaner.rlctl.errors import OK
from gleaner.rlctl.plain_output import print_plain_json

if TYPE_CHECKING:  # its import takes longer than the whole command
    from gleaner.supervisor.system_messages import ActorState, SystemState

_DESCRIPTION = """\
Show the supervision tree of every host: supervisors, actors and processes under them, and their figures.

The supervisor above a failed child restarts it; when that happens too often the supervisor itself fails
upward. A child process shows its own actors beneath it."""

_EXAMPLES = """\
  rlctl tree
  rlctl tree --run quickstart-2025 --json"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(commands, "tree", tree, description=_DESCRIPTION, examples=_EXAMPLES)
    add_cluster(parser)
    add_deadline(parser)
    add_json(parser)


def tree(args: argparse.Namespace) -> int:
    """Run the command."""
    seen = look_at_processes(args)
    if args.json:
        print_plain_json({"hosts": _nested(seen.states), "silent": seen.silent})
    else:
        out = console()
        for branch in trees(seen.states):
            out.print(branch)
        tell_silent(seen.silent, out)
    return OK


def trees(states: "Sequence[SystemState]") -> list[Tree]:
    """One tree for each host, with the node agent's process as its root; child processes are placed under
    their supervisors."""
    hosts: dict[str, list[SystemState]] = {}
    for state in states:
        hosts.setdefault(state.node, []).append(state)
    return [_host(node, processes) for node, processes in hosts.items()]


def _host(node: str, processes: "Sequence[SystemState]") -> Tree:
    by_pid = {state.pid: state for state in processes}
    agent = next((state for state in processes if state.process == "agent"), None)
    root = Tree(Text(node if agent is None else f"{node}  pid {agent.pid}", style="bold"))
    shown: set[int] = set()
    for state in ([agent] if agent else []) + [state for state in processes if state is not agent]:
        if state.pid not in shown:
            shown.add(state.pid)
            base = root if state is agent else root.add(_process_label(state.process, state.pid))
            _actors(base, state, by_pid, shown)
    return root


def _actors(base: Tree, state: "SystemState", by_pid: "dict[int, SystemState]", shown: set[int]) -> None:
    supervisors: dict[str, Tree] = {}
    branches: dict[str, Tree] = {}
    for actor in state.actors:
        place = base
        if actor.parent:
            if actor.parent not in supervisors:
                title = Text(f"{actor.parent}  {actor.strategy}".rstrip(), style="dim")
                own = branches.get(actor.parent)  # a supervisor that is another one's child
                if own is not None:
                    own.label = title
                supervisors[actor.parent] = own or base.add(title)
            place = supervisors[actor.parent]
        branch = branches[actor.name] = place.add(_label(actor))
        child = by_pid.get(actor.pid)
        if child is not None and child.pid not in shown:
            shown.add(child.pid)
            _actors(branch, child, by_pid, shown)


def _process_label(name: str, pid: int) -> Text:
    return Text.assemble((name, "cyan"), (f"  pid {pid}", "dim"))


def _label(actor: "ActorState") -> Text:
    text = _process_label(actor.name, actor.pid) if actor.pid else Text(actor.name)
    if actor.state != "running":
        text.append(f"  {actor.state}", style="yellow")
    if actor.restarts:
        last = f", last: {actor.last_failure}" if actor.last_failure else ", each with another"
        text.append(f"  {actor.restarts} restarts{last}", style="red")
    figures = "  ".join(f"{name} {value}" for name, value in actor.figures.items())
    return text.append(f"  {figures}" if figures else "", style="dim")


def _nested(states: "Sequence[SystemState]") -> dict[str, dict[str, object]]:
    hosts: dict[str, dict[str, object]] = {}
    for state in states:
        hosts.setdefault(state.node, {})[state.process] = {
            "pid": state.pid,
            "endpoint": state.endpoint,
            "actors": state.actors,
        }
    return hosts
