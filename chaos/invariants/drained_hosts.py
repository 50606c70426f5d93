"""Drained hosts: a host that goes away, or may go, gets no new requests, whatever restarts meanwhile.

Owns which hosts are drained, by the notices that their node agents got, and the last reason for which the
manager may not know: no journal has it, so each host repeats it to the manager.
"""

from collections.abc import Iterable

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.balancer import ForgetAll
from gleaner.actors.protocol.cluster import CloudNotice, NodeWork, PreemptionNotice
from gleaner.actors.protocol.instances import Registered
from gleaner.actors.rollout.state.events import Dispatched
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed
from gleaner.chaos.invariants.world_facts import WorldSeen
from gleaner.nodeagent.departure import AGAIN_S, ASK_DEADLINE_S
from gleaner.sim.run_setup import HEAD

KNOWN_S = AGAIN_S + ASK_DEADLINE_S + 1.0
"""From a new manager or registration until the host has repeated that it is drained: the pause between two
reports, one that is lost, the way."""
SILENT_S = 3.0
"""Between two answers to a host's hellos, of which it sends one a second: beyond it, something is between the
host and the head."""


class DrainedHosts(Check):
    """See `promise`."""

    fact_kinds = (MessagePassed, Committed, WorldSeen)
    message_kinds = (CloudNotice, PreemptionNotice, Registered, ForgetAll, NodeWork)
    name = "drained hosts"
    promise = "a host that goes away, or may go, gets no new requests, whatever restarts meanwhile"
    meaning = (
        "If this fails, a host gets work that it loses when it goes, because a restart forgot the drain that "
        "its cloud or its operator had ordered."
    )

    def __init__(self) -> None:
        self._drained: dict[str, float] = {}  # by host: since when
        self._registered: dict[str, float] = {}  # by host: its engine's newest registration
        self._manager_s = 0.0
        self._well_s = 0.0  # since when nothing is against the head
        self._answered: dict[str, tuple[float, float]] = {}  # by host: since when it has answers, the newest

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, WorldSeen):
            self._look(fact)
        elif isinstance(fact, MessagePassed):
            self._passed(fact)
        elif isinstance(fact, Committed) and fact.stream == MANAGER:
            for message in fact.messages:
                if isinstance(message, Dispatched):
                    yield from self._dispatched(message, fact.at_s)

    def _look(self, world: WorldSeen) -> None:
        for name in list(self._drained):
            look = world.hosts.get(name)
            if look is None or world.at_s - look.agent_s > self._drained[name]:
                del self._drained[name]  # another life of its node agent, which never got the notice
        self._well_s = world.at_s - world.calm_s(HEAD)

    def _passed(self, fact: MessagePassed) -> None:
        message = fact.message
        if isinstance(message, ForgetAll):
            self._manager_s = fact.at_s
        elif isinstance(message, Registered):
            if fact.source == MANAGER and fact.direction != "in":
                self._registered[fact.to.partition("/")[0]] = fact.at_s
        elif fact.direction == "in":
            host = fact.process.partition("/")[0]
            if isinstance(message, NodeWork):
                since_s, newest_s = self._answered.get(host, (fact.at_s, fact.at_s))
                began_s = since_s if fact.at_s - newest_s < SILENT_S else fact.at_s
                self._answered[host] = began_s, fact.at_s
            elif isinstance(message, CloudNotice) and message.kind == "none":
                self._drained.pop(host, None)
            else:
                self._drained.setdefault(host, fact.at_s)

    def _dispatched(self, message: Dispatched, at_s: float) -> Iterable[str]:
        host = message.instance.partition("/")[0]
        since_s = self._drained.get(host)
        answers_s, newest_s = self._answered.get(host, (at_s, at_s))
        if since_s is None or at_s - newest_s > SILENT_S:
            return
        known_s = max(since_s, self._registered.get(host, 0.0), self._manager_s, self._well_s, answers_s)
        if at_s > known_s + KNOWN_S:
            self._drained.pop(host)  # once
            yield (
                f"{message.instance} gets {len(message.requests)} requests; {host} is drained for "
                f"{at_s - since_s:.1f} s, and could report that for {at_s - known_s:.1f} s"
            )
