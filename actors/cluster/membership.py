"""Which hosts are in the cluster, and what became of the others.

Pure: hellos, ends and the time go in, events for the controller come out. A host counts as killed when its
agent's process is gone, or silent for too long, without a goodbye; an agent that crashes and is restarted in
a process that lives changes nothing. The head's own host is a member too, but no event tells of it.
"""

from dataclasses import dataclass
from typing import Literal

from actors.cluster.messages import NodeHello, NodeSeen
from supervisor import Address

MAX_MEMBERS = 4096
"""Hosts of one head; a hello beyond it is not taken."""
HEAD = "head"
_MAY_RETURN = ("crashed", "not alive", "superseded")
"""Ends of an agent that say nothing about its host: its supervisor restarts it within the silence."""


@dataclass(slots=True)
class Member:
    """A host that said hello; `heard_s`: when it last did, `run_id`: the job whose part it ran then."""

    role: str
    agent: Address
    state: str
    heard_s: float
    run_id: str = ""


class Members:
    """The hosts by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Member] = {}

    def hello(self, hello: NodeHello, now_s: float) -> list[NodeSeen]:
        """A sign of life, or the goodbye of a host that leaves."""
        known = self.by_name.get(hello.node)
        if known is not None and known.agent.incarnation > hello.agent.incarnation:
            return []  # a late word of an earlier life
        if hello.state == "leaving":
            if known is not None:
                del self.by_name[hello.node]
                return _seen(hello.node, known, "left")
            return []
        if known is None and len(self.by_name) >= MAX_MEMBERS:
            return []
        member = Member(hello.role, hello.agent, hello.state, now_s, hello.run_id)
        self.by_name[hello.node] = member
        if known is None:
            return _seen(hello.node, member, "joined")
        if known.agent.endpoint != hello.agent.endpoint:  # another process: it died before anybody noticed
            return [*_seen(hello.node, known, "killed"), *_seen(hello.node, member, "joined")]
        return []

    def ended(self, agent: str, incarnation: int, cause: str) -> list[NodeSeen]:
        """The end of the actor `agent`, which is watched."""
        for node, member in self.by_name.items():
            if member.agent.name == agent and member.agent.incarnation == incarnation:
                if cause.startswith(_MAY_RETURN):
                    return []
                del self.by_name[node]
                return _seen(node, member, "left" if cause == "stopped" else "killed")
        return []

    def silent(self, now_s: float, dead_s: float) -> list[NodeSeen]:
        """Drop whoever was not heard for `dead_s`."""
        gone = [(node, m) for node, m in self.by_name.items() if now_s - m.heard_s > dead_s]
        events: list[NodeSeen] = []
        for node, member in gone:
            del self.by_name[node]
            events += _seen(node, member, "killed")
        return events

    def free_for(self, node: str, run_id: str) -> bool:
        """Whether `node` may begin the job: actors of an earlier one bear the same names, so all hosts let go
        of that first."""
        held = {member.run_id for member in self.by_name.values()}
        return self.by_name[node].run_id == run_id or held <= {"", run_id}

    def count(self, role: str) -> int:
        """Hosts of a role."""
        return sum(member.role == role for member in self.by_name.values())


def _seen(node: str, member: Member, event: Literal["joined", "left", "killed"]) -> list[NodeSeen]:
    return [] if member.role == HEAD else [NodeSeen(node=node, role=member.role, event=event)]
