"""Calm waits: a wait that began when all was well does not pass its deadline.

Owns how long all hosts have been well. A wait that passes its deadline is an event, which is right while
something is broken; a wait of a whole cluster has another cause.
"""

from collections.abc import Iterable

from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Fact
from gleaner.chaos.invariants.world_facts import ExpiredSeen, WorldSeen
from gleaner.configs.schema import Liveness


class NoLateWaitInCalm(Check):
    """See `promise`."""

    fact_kinds = (ExpiredSeen, WorldSeen)
    name = "calm waits"
    promise = "no wait passes its deadline that began after the last fault, and after its peers noticed it"
    meaning = "If this fails, something waits for what does not come, though nothing is broken any more."

    def __init__(self, liveness: Liveness) -> None:
        self._dead_s = liveness.dead_s
        self._calm_since_s: float | None = None
        self._found: set[tuple[str, str]] = set()

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, WorldSeen):
            calm_s = fact.calm_s(*fact.hosts) if fact.hosts else 0.0
            self._calm_since_s = fact.at_s - min(calm_s, fact.verifiers_s)
        elif isinstance(fact, ExpiredSeen) and self._calm_since_s is not None:
            began_s = fact.at_s - fact.since_s
            if began_s > self._calm_since_s + self._dead_s and (fact.who, fact.what) not in self._found:
                self._found.add((fact.who, fact.what))
                yield (
                    f"{fact.who} in {fact.process} waits for {fact.what} on {fact.on} for "
                    f"{fact.since_s:.1f} s, beyond its deadline; all hosts were well for "
                    f"{began_s - self._calm_since_s:.1f} s before"
                )
