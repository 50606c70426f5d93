"""`Members`: hosts of the cluster, and the ends of the others.

Pure: inputs are hellos, ends and the time; outputs are events for the controller. A host counts as killed
when its agent's process is gone, or silent for too long, without a goodbye; an agent that crashes and is
restarted in a process that lives changes nothing. The head's own host is a member too, but causes no event.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from gleaner.actors.protocol.cluster import NodeHello, NodeSeen
from gleaner.supervisor import Address

MAX_MEMBERS = 4096
"""Hosts of one head; a hello beyond it is refused."""
HEAD = "head"
_MAY_RETURN = ("crashed", "not alive", "superseded")
"""Ends of an agent that are no evidence about its host: its supervisor restarts it within the silence."""


@dataclass(slots=True)
class Member:
    """A host that sent a hello; `heard_s`: the time of the last one, `run_id`: the job whose part it ran
    then, `devices`: see `Inventory`, `width`: that its engine was started with, 0 for none."""

    role: str
    agent: Address
    state: str
    heard_s: float
    run_id: str = ""
    devices: int = 1
    width: int = 0


class Members:
    """The hosts by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Member] = {}
        """Read only; changed by `put` and by events."""
        self._running: Counter[str] = Counter()  # hosts by the job whose part they run

    def put(self, node: str, member: Member) -> None:
        """Set the known state of that host."""
        known = self.by_name.get(node)
        self.by_name[node] = member
        if known is None or known.run_id != member.run_id:
            self._running[member.run_id] += 1
            self._runs_no_longer(known)

    def hello(self, hello: NodeHello, now_s: float) -> list[NodeSeen]:
        """A sign of life, or the goodbye of a leaving host."""
        known = self.by_name.get(hello.node)
        if known is not None and known.agent.incarnation > hello.agent.incarnation:
            return []  # a late message of an earlier life
        if hello.state == "leaving":
            if known is not None:
                self._drop(hello.node)
                return _seen(hello.node, known, "left")
            return []
        if known is None and len(self.by_name) >= MAX_MEMBERS:
            return []
        devices, width = hello.inventory.devices, hello.width
        member = Member(hello.role, hello.agent, hello.state, now_s, hello.run_id, devices, width)
        self.put(hello.node, member)
        if known is None:
            return _seen(hello.node, member, "joined")
        if known.agent.endpoint != hello.agent.endpoint:  # another process: the old one died unnoticed
            return [*_seen(hello.node, known, "killed"), *_seen(hello.node, member, "joined")]
        return []

    def ended(self, agent: str, incarnation: int, cause: str) -> list[NodeSeen]:
        """The end of the actor `agent`, which is watched."""
        for node, member in self.by_name.items():
            if member.agent.name == agent and member.agent.incarnation == incarnation:
                if cause.startswith(_MAY_RETURN):
                    return []
                self._drop(node)
                return _seen(node, member, "left" if cause == "stopped" else "killed")
        return []

    def silent(self, now_s: float, dead_s: float) -> list[NodeSeen]:
        """Drop members that sent nothing for `dead_s`."""
        gone = [(node, m) for node, m in self.by_name.items() if now_s - m.heard_s > dead_s]
        events: list[NodeSeen] = []
        for node, member in gone:
            self._drop(node)
            events += _seen(node, member, "killed")
        return events

    def free_for(self, node: str, run_id: str) -> bool:
        """Whether `node` may begin the job.

        Actors of an earlier job have the same names, so all hosts must stop that first. False for a host that
        is no member."""
        member = self.by_name.get(node)
        if member is None:
            return False
        return member.run_id == run_id or self._running.keys() <= {"", run_id}

    def _drop(self, node: str) -> None:
        self._runs_no_longer(self.by_name.pop(node, None))

    def _runs_no_longer(self, member: Member | None) -> None:
        if member is not None:
            self._running[member.run_id] -= 1
            if not self._running[member.run_id]:
                del self._running[member.run_id]

    def count(self, role: str) -> int:
        """Hosts of a role."""
        return sum(member.role == role for member in self.by_name.values())


def _seen(node: str, member: Member, event: Literal["joined", "left", "killed"]) -> list[NodeSeen]:
    if member.role == HEAD:
        return []
    return [NodeSeen(node=node, role=member.role, event=event, devices=member.devices)]
