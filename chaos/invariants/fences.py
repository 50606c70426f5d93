"""I4: an older incarnation changes nothing, from the commits and the names alone."""

from collections.abc import Iterable

from chaos.invariants.check import Check
from chaos.invariants.facts import Committed, Ending, Fact, Said
from chaos.invariants.samples import audited
from rlctl.audit import Evidence
from supervisor.registry import Fences, NameFenced
from supervisor.system_messages import Found


class OldIncarnationsSilent(Check):
    """See the module."""

    sees = (Committed, Said)
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
                    yield from self._claims(message.name, message.incarnation)
                elif isinstance(message, Fences):
                    self._held.update(message.highest)
        elif isinstance(fact, Said) and fact.direction == "out" and isinstance(fact.message, Found):
            address = fact.message.address
            if address is not None and address.incarnation < self._held.get(address.name, 0):
                yield (
                    f"{address.name} was found at incarnation {address.incarnation}, "
                    f"{self._held[address.name]} "
                    "holds it"
                )

    def end(self, evidence: Evidence, ending: Ending) -> Iterable[str]:
        return audited(self.name, evidence)

    def _claims(self, name: str, incarnation: int) -> Iterable[str]:
        before = self._held.get(name, 0)
        if incarnation <= before:
            yield f"{name} was given to incarnation {incarnation} after {before} had held it"
        self._held[name] = max(before, incarnation)
