"""Check: name, promise, the facts that it takes, and its violations.

Owns the shape that every check of `catalogue` has. To write a new one, see docs/chaos.md.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed, RunEnd
from gleaner.rlctl.audit.invariants import Evidence
from gleaner.supervisor import Message


@dataclass(frozen=True, slots=True)
class Found:
    """A violation. at_s: time of detection; at the end of the run, its length."""

    check: str
    at_s: float
    text: str

    def __str__(self) -> str:
        return f"{self.check} at {self.at_s:.3f} s: {self.text}"


class Check:
    """One invariant. Subclasses state in `promise` what must hold and in `meaning` its value to a user, and
    yield a text for each violation; one instance judges one run.

    A text names the objects, with the numbers of both sides, because its reader has no other source.
    """

    fact_kinds: tuple[type[Fact], ...] = (Fact,)
    """The kinds of facts that `see` is called with."""
    message_kinds: tuple[type[Message], ...] = (Message,)
    """Kinds of `MessagePassed` messages with which `see` is called: most facts are such messages."""
    committed_kinds: tuple[type[Message], ...] = (Message,)
    """Kinds of events with which `see` is called, of commits of one event: most of those are token frames."""
    name = ""
    promise = ""
    meaning = ""

    def wants(self, fact: Fact) -> bool:
        """Whether `see` is called with facts like this one."""
        if isinstance(fact, MessagePassed) and not isinstance(fact.message, self.message_kinds):
            return False
        if isinstance(fact, Committed) and len(fact.messages) == 1:
            one = fact.messages[0]
            return isinstance(one, self.committed_kinds) and isinstance(fact, self.fact_kinds)
        return isinstance(fact, self.fact_kinds)

    def see(self, fact: Fact) -> Iterable[str]:
        """Take a fact. Called in the order of events; must not keep data that grows with the run, except open
        items."""
        return ()

    def end(self, evidence: Evidence, ending: RunEnd) -> Iterable[str]:
        """The run is over; `evidence` is from its journals and checkpoints."""
        return ()

    @classmethod
    def explained(cls) -> str:
        """Explanation for a person who sees it fail for the first time."""
        return f"{cls.name}: {cls.promise}. {cls.meaning}"


def some(texts: Iterable[str], shown: int = 3) -> Iterator[str]:
    """The first few, and how many more."""
    every = list(texts)
    yield from every[:shown]
    if len(every) > shown:
        yield f"and {len(every) - shown} more of this kind"
