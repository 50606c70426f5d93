"""I4: an older incarnation changes nothing, from the commits and the names alone."""

import math
from collections.abc import Iterable

from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed, RunEnd
from gleaner.chaos.invariants.samples import audited
from gleaner.rlctl.audit.invariants import Evidence
from gleaner.supervisor.names.registry import Fences, NameFenced
from gleaner.supervisor.system_messages import Found

GRANT_S = 1.0
"""From the commit of a fence to the grant of its name: the next turn of the registry, which may be slowed."""


class OldIncarnationsSilent(Check):
    """See the module."""

    fact_kinds, message_kinds = (Committed, MessagePassed), (Found,)
    name = "I4"
    promise = "an older incarnation changes nothing"
    meaning = (
        "If this fails, a process that was frozen or cut off, and replaced meanwhile, came back and wrote "
        "over "
        "what its successor had done."
    )

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], int] = {}  # bounded by the streams that there are
        self._held: dict[str, int] = {}
        self._since_s: dict[str, float] = {}

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, Committed):
            stream = (fact.host, fact.stream)
            newest = self._newest.get(stream, 0)
            if fact.incarnation < newest:
                yield (
                    f"incarnation {fact.incarnation} wrote to {fact.stream} on {fact.host} after incarnation "
                    f"{newest} had"
                )
            self._newest[stream] = max(newest, fact.incarnation)
            for message in fact.messages:
                if isinstance(message, NameFenced):
                    yield from self._claims(fact.at_s, message.name, message.incarnation)
                elif isinstance(message, Fences):
                    self._held.update(message.highest)
                    for name in message.highest:
                        self._since_s.setdefault(name, fact.at_s)
        elif isinstance(fact, MessagePassed) and fact.direction == "out" and isinstance(fact.message, Found):
            yield from self._found(fact.at_s, fact.message)

    def end(self, evidence: Evidence, ending: RunEnd) -> Iterable[str]:
        return audited(self.name, evidence, ending)

    def _found(self, at_s: float, found: Found) -> Iterable[str]:
        """An answer of the registry: the name is a new incarnation's from its grant on, which follows the
        commit."""
        address = found.address
        if address is None:
            return
        held = self._held.get(address.name, 0)
        if address.incarnation == held:
            self._since_s[address.name] = -math.inf  # granted: nothing older is found from here on
        elif address.incarnation < held and at_s - self._since_s[address.name] > GRANT_S:
            yield f"{address.name} was found at incarnation {address.incarnation}, {held} holds it"

    def _claims(self, at_s: float, name: str, incarnation: int) -> Iterable[str]:
        before = self._held.get(name, 0)
        if incarnation <= before:
            yield f"{name} was given to incarnation {incarnation} after {before} had held it"
        self._held[name], self._since_s[name] = max(before, incarnation), at_s
