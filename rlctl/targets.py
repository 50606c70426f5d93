"""Target process of a command, found by the name of an actor, process or host.

Pure: process summaries go in.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gleaner.nodeagent.defaults import AGENT
from gleaner.rlctl.errors import nothing, usage

if TYPE_CHECKING:  # its import takes longer than the whole command may
    from gleaner.supervisor.system_messages import SystemState


class Target(NamedTuple):
    """A process of a host."""

    node: str
    process: str
    pid: int

    def __str__(self) -> str:
        return self.node if self.process == AGENT else f"{self.node}/{self.process}"


def resolve(name: str, states: "Sequence[SystemState]") -> Target:
    """The process for a host's, an actor's or a process's name, in this order. Raises CommandError.

    A child process that does not answer (it starts, or is stopped by a signal) is known from its parent.
    """
    targets = _targets(states)
    hosts = [target for target in targets if target.process == AGENT and target.node == name]
    actors = [
        Target(state.node, state.process, state.pid)
        for state in states
        for actor in state.actors
        if actor.name == name and not actor.pid
    ]
    processes = [target for target in targets if name in (target.process, f"{target.node}/{target.process}")]
    found = hosts or actors or processes
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{target.node}/{target.process}" for target in found)
        raise usage(f"{name}: several processes have this name: {names}")
    raise nothing(
        f"{name}: no such actor, process or host; there are {', '.join(map(str, targets)) or 'none'}"
    )


def _targets(states: "Sequence[SystemState]") -> list[Target]:
    answered = [Target(state.node, state.process, state.pid) for state in states]
    children = [
        Target(state.node, actor.name, actor.pid)
        for state in states
        if state.process == AGENT
        for actor in state.actors
        if actor.pid and actor.name not in {other.node for other in states} and "/" not in actor.name
    ]
    return list(dict.fromkeys([*answered, *children]))
