"""Frozen processes: each is ended in time and by name, and accuses no other.

A frozen process must not declare others dead when it continues.
"""

from collections.abc import Iterable

from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import DeclaredDead, Fact, ProcessFrozen

NAMED = ("no heartbeat for", "no sign of life")
"""Words in the exit cause of a process that was found frozen."""


class HungIsEnded(Check):
    """See `promise`."""

    fact_kinds = (ProcessFrozen,)
    name = "hung process"
    promise = "a process that hangs is ended within its stated limit, with that reason"
    meaning = (
        "If this fails, a process that is stopped or deadlocked keeps its names, its device and its work: "
        "the job hangs with it, or a supervisor restarts others in its place."
    )

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def see(self, fact: Fact) -> Iterable[str]:
        if not isinstance(fact, ProcessFrozen):
            return
        if fact.ended and not fact.others and not any(word in fact.ended for word in NAMED):
            yield f"{fact.process} hung for {fact.for_s:.1f} s, and ended for another reason: {fact.ended}"
        if not fact.ended and fact.for_s > fact.limit_s and fact.process not in self._reported:
            self._reported.add(fact.process)
            yield f"{fact.process} has hung for {fact.for_s:.1f} s; the limit is {fact.limit_s:.1f} s"


class NoInventedDeath(Check):
    """See `promise`."""

    fact_kinds = (DeclaredDead,)
    name = "invented death"
    promise = "a head that hung declares no host dead for messages that it could not receive meanwhile"
    meaning = (
        "If this fails, a pause of the head (a stopped process, a suspended machine) costs the hosts of the "
        "job: their work is done again elsewhere, and a provider replaces machines that are well."
    )

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, DeclaredDead) and fact.lives and fact.stood_still_s > 0:
            yield (
                f"the head declared {fact.host} killed, which runs and could be reached, after it had "
                f"hung itself for {fact.stood_still_s:.1f} s"
            )
