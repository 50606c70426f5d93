"""Membership: the scheduler's members and the history agree with the hosts that live.

Owns how long each of the two has differed from the machines, and the ends that were recorded of each life of
a node agent.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from gleaner.actors.cluster.host_events import ASK_DEADLINE_S, RETRY_S
from gleaner.actors.cluster.membership_journal import MembersAre
from gleaner.actors.cluster.scheduler import LOOK_S, LOOKS
from gleaner.actors.names import SCHEDULER
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact
from gleaner.chaos.invariants.world_facts import HostLook, HostRecorded, WorldSeen
from gleaner.configs.schema import Liveness
from gleaner.nodeagent.agent import HELLO_AGAIN_S
from gleaner.sim.run_setup import HEAD
from gleaner.supervisor import Address


def seen_s(liveness: Liveness) -> float:
    """From the end of a host until the scheduler knows: the silence, and its next look for it; from its
    start: a hello that got no answer, and the next one."""
    look_s = max(LOOK_S, liveness.dead_s / LOOKS)
    return liveness.dead_s + max(look_s, liveness.hello_s + HELLO_AGAIN_S)


class MembersLive(Check):
    """See `promise`."""

    fact_kinds = (Committed, WorldSeen, HostRecorded)
    committed_kinds = (MembersAre,)
    name = "membership"
    promise = (
        "the scheduler's members and the hosts in the history are those that live, but for the time that a "
        "start or an end takes to be seen, and a host that lives on is not recorded as gone"
    )
    meaning = (
        "If this fails, work is planned for hosts that are gone, or hosts that are there are not counted, "
        "planned with, or paid for in the report."
    )

    def __init__(self, liveness: Liveness) -> None:
        self._seen_s = seen_s(liveness)
        self._recorded_s = self._seen_s + ASK_DEADLINE_S + RETRY_S
        self._members: dict[str, Address] = {}
        self._absent: dict[tuple[str, str], float] = {}
        self._lives: dict[str, HostLook] = {}
        self._head = HostLook(name=HEAD, role="head")
        self._ends: Counter[tuple[str, int]] = Counter()
        self._found: set[tuple[str, str]] = set()
        self._looked_s = 0.0

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, Committed) and fact.stream == f"{SCHEDULER}/members":
            for message in fact.messages:
                if isinstance(message, MembersAre):
                    members = {
                        node: message.agents[node] for node, role in message.roles.items() if role != "head"
                    }
                    for name in members.keys() | self._members.keys():
                        if members.get(name) != self._members.get(name):  # also by another life of its agent
                            self._absent.pop(("the scheduler", name), None)
                    self._members = members
        elif isinstance(fact, WorldSeen):
            yield from self._look(fact)
        elif isinstance(fact, HostRecorded) and fact.event in ("joined", "killed", "left"):
            self._absent.pop(("the history", fact.host), None)
            if fact.event != "joined":
                yield from self._ended(fact)

    def _look(self, world: WorldSeen) -> Iterator[str]:
        passed_s, self._looked_s = world.at_s - self._looked_s, world.at_s
        self._lives = world.hosts
        self._head = world.hosts.get(HEAD, HostLook(name=HEAD, role="head"))
        live = {name for name, look in world.hosts.items() if look.agent and name != HEAD}
        recorded = world.recorded if world.began else None
        for what, said, limit_s in (
            ("the scheduler", set(self._members), self._seen_s),
            ("the history", recorded, self._recorded_s),
        ):
            for name in sorted(live ^ said) if said is not None else ():
                before_s = self._absent.get((what, name))  # None: they agreed at the look before
                absent_s = self._absent[what, name] = 0.0 if before_s is None else before_s + passed_s
                calm_s = world.calm_s(HEAD, name) if name in live else self._head.calm_s
                if min(absent_s, calm_s) > limit_s and (what, name) not in self._found:
                    self._found.add((what, name))
                    state = "lives" if name in live else "is gone"
                    known = "as up" if name in (said or ()) else "not as up"
                    yield f"{name} {state}, and {what} has had it {known} for {absent_s:.1f} s"
            for key in [
                key for key in self._absent if key[0] == what and key[1] not in live ^ (said or set())
            ]:
                del self._absent[key]

    def _ended(self, fact: HostRecorded) -> Iterator[str]:
        """An end that no machine had. A young node agent may have an earlier life whose end is recorded now,
        once."""
        look = self._lives.get(fact.host)
        if look is None or not look.agent:
            return
        self._ends[fact.host, look.agent] += 1
        least_s = min(look.steady_s, self._head.steady_s, self._head.agent_s)
        if least_s < min(look.agent_s, self._seen_s) + self._seen_s or look.noticed:
            return
        allowed = look.agent_s < self._seen_s
        if self._ends[fact.host, look.agent] > allowed:
            yield (
                f"the history has {fact.host} as {fact.event}; its node agent has run for "
                f"{look.agent_s:.1f} s, and nothing was against it for {least_s:.1f} s"
            )
