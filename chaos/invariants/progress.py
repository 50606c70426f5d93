"""I8, I9 and no silent wait: jobs end, sizes are bounded, late waits are reported.

Owns the observations of time and of size. The limits are defined in production code; the observer passes them
in.
"""

from collections.abc import Iterable

from gleaner.actors.training.job_journal import StepFinished
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact, Failed, LateWait, Measured, RunEnd
from gleaner.rlctl.audit.invariants import Evidence

SHOWN_WAITS = 5


class EveryStepEnds(Check):
    """I8."""

    fact_kinds = (Committed,)
    committed_kinds = (StepFinished,)
    name = "I8"
    promise = "while the reserved hosts live, every step ends"
    meaning = (
        "If this fails, the job hangs although everything that was broken has healed: something was lost "
        "that is not requested again, or two wait for each other."
    )

    def __init__(self) -> None:
        self._finished = 0
        self._at_s = 0.0

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, Committed):
            for message in fact.messages:
                if isinstance(message, StepFinished):
                    self._finished, self._at_s = message.step, fact.at_s
        return ()

    def end(self, evidence: Evidence, ending: RunEnd) -> Iterable[str]:
        if not ending.ended:
            waits = "; ".join(ending.waits[:SHOWN_WAITS]) or "no actor waits for anything"
            yield (
                f"the job did not end within {ending.deadline_s:.0f} s "
                f"({ending.reason or 'no reason given'}), "
                f"{ending.quiet_s:.0f} s after the last fault; step {self._finished} of {evidence.steps} "
                f"was the "
                f"last to end, at {self._at_s:.1f} s. Oldest waits: {waits}"
            )


class NothingGrows(Check):
    """I9."""

    fact_kinds = (Measured,)
    name = "I9"
    promise = "mailboxes, rings, links, journals and caches stay within their stated limits"
    meaning = (
        "If this fails, a peer that is slow or gone costs memory without end, and the process dies of it "
        "some "
        "day."
    )

    def __init__(self) -> None:
        self._reported: set[tuple[str, str]] = set()

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, Measured) and fact.value > fact.limit:
            place = (fact.process, fact.what)
            if place not in self._reported:
                self._reported.add(place)
                yield f"{fact.what} of {fact.process}: {fact.value:g}, the limit is {fact.limit:g}"


class NoSilentWait(Check):
    """No wait passes its deadline without an action."""

    fact_kinds = (LateWait,)
    name = "no silent wait"
    promise = "each wait on something outside an actor has a deadline, and the actor acts when it passes"
    meaning = (
        "If this fails, an actor waits beyond its own deadline, and neither log nor metric nor `rlctl waits` "
        "shows it: the way in which systems hang for days."
    )

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, LateWait):
            yield (
                f"{fact.who} in {fact.process} waits for {fact.what} on {fact.on}: its deadline passed "
                f"{fact.late_s:.2f} s ago and nothing was done"
            )


class NoStrayFailure(Check):
    """No exception is left uncaught."""

    fact_kinds = (Failed,)
    name = "no stray failure"
    promise = "every exception is caught where it is expected"
    meaning = "If this fails, a task died with its work undone, and no supervisor restarts it."

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, Failed):
            yield f"{fact.process}: {fact.text}"
