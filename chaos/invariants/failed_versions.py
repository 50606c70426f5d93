"""Versions that are given up: only where instances could not load them.

Owns the count of failed loads, from the reports that the manager received.
"""

from collections import Counter
from collections.abc import Iterable

from gleaner.actors.protocol.instances import NotLoaded, Serving
from gleaner.actors.rollout.state.events import VersionFailed
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed

LEAST = 3
"""Loads that fail before a version is given up, as docs/weights.md states."""
Key = tuple[int, bytes]


class GivenUpRightly(Check):
    """See `promise`."""

    fact_kinds, message_kinds = (Committed, MessagePassed), (NotLoaded, Serving)
    committed_kinds = (VersionFailed,)
    name = "failed loads"
    promise = f"a version is given up only after {LEAST} loads of it failed, and where no instance serves it"
    meaning = (
        "If this fails, one instance with a full disk or a broken server takes a sound version away from all "
        "others, and the job whose trainer made it ends."
    )

    def __init__(self) -> None:
        self._failed = Counter[Key]()
        self._served: dict[Key, str] = {}

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, MessagePassed):
            self._observe(fact)
        elif isinstance(fact, Committed):
            for message in fact.messages:
                if isinstance(message, VersionFailed):
                    yield from self._given_up(message)

    def _observe(self, fact: MessagePassed) -> None:
        message = fact.message
        if fact.direction != "in" or not isinstance(message, NotLoaded | Serving):
            return
        key = (message.version, message.root)
        if isinstance(message, NotLoaded):
            self._failed[key] += 1
        else:
            self._served[key] = message.instance

    def _given_up(self, event: VersionFailed) -> Iterable[str]:
        key = (event.version, event.root)
        if (count := self._failed[key]) < LEAST:
            yield f"version {event.version} was given up after {count} failed loads of it, {LEAST} are due"
        if instance := self._served.get(key):
            yield f"version {event.version} was given up, and {instance} serves it"
