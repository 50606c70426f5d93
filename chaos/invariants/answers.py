"""Answers follow commits: what an actor confirms is in its journal first.

Owns the newest commits that the answers confirm: members, registrations, batches. Only then does a death
between the two change nothing that its caller relies on. An answer that was right stays so when it is
repeated from memory, for a caller that lost it and asks again. A host may be no member any more by then: the
Scheduler lost contact with it, and its next hello makes it one again.
"""

from collections.abc import Iterable

from gleaner.actors.cluster.membership_journal import MembersAre
from gleaner.actors.names import MANAGER, SCHEDULER
from gleaner.actors.protocol.cluster import NodeWork
from gleaner.actors.protocol.instances import Registered
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed
from gleaner.chaos.invariants.shadow import Shadow
from gleaner.sim.run_setup import HEAD


class AnswersFollowCommits(Check):
    """See `promise`."""

    fact_kinds = (Committed, MessagePassed)
    message_kinds = (NodeWork, Registered)
    committed_kinds = (MembersAre,)
    name = "answers"
    promise = "a host is given work only when it is a member in the journal, an instance only when it joined"
    meaning = "If this fails, a restart forgets a host or an instance after it was accepted."

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow
        self._members: set[str] = set()
        self._given: dict[str, NodeWork] = {}  # by host: the newest that was given rightly
        self._registered: set[tuple[str, str]] = set()  # instances and epochs that were confirmed rightly

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, Committed):
            if fact.stream == f"{SCHEDULER}/members":
                for message in fact.messages:
                    if isinstance(message, MembersAre):
                        self._members = set(message.agents)
        elif isinstance(fact, MessagePassed) and fact.mode == "reply" and fact.direction != "in":
            node, message = fact.to.partition("/")[0], fact.message
            if isinstance(message, NodeWork) and message.job is not None and fact.source == SCHEDULER:
                if node in self._members:
                    self._given[node] = message
                elif node != HEAD and self._given.get(node) is not message:  # it is kept as it is
                    yield f"{node} was given work and is no member in the journal"
            elif isinstance(message, Registered) and fact.source == MANAGER:
                stream = self._shadow.streams.get(fact.to)
                if stream is not None and not stream.gone:
                    self._registered.add((fact.to, message.epoch))
                elif (fact.to, message.epoch) not in self._registered:
                    yield f"{fact.to} was registered and has not joined in the journal"
