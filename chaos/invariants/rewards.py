"""I7: every reward counts once.

Checked from the journal, the verdicts and the samples that were handed out. A sample whose verifier failed
has no reward, and is not trained on. This check covers no sandbox: a simulated scorer runs no program.
"""

import math
from collections.abc import Iterable, Iterator

from gleaner.actors.protocol.cluster import StepTrained
from gleaner.actors.protocol.rollout import BatchLedger, GroupOut, Groups
from gleaner.actors.reward.verdicts import OURS
from gleaner.actors.rollout.state.events import Scored
from gleaner.chaos.invariants.check import Check, some
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed
from gleaner.chaos.invariants.shadow import Shadow


class RewardsOnce(Check):
    """See the module."""

    fact_kinds, message_kinds = (Committed, MessagePassed), (Groups,)
    committed_kinds = (Scored, StepTrained, BatchLedger)
    name = "I7"
    promise = (
        "every reward counts once, and is the one of its response; no step trains on a sample without one"
    )
    meaning = (
        "If this fails, a response was paid twice or with the reward of another, or a broken verifier's "
        "answer "
        "got into the gradient."
    )

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, Committed):
            for message in fact.messages:
                if isinstance(message, Scored):
                    yield from some(_scored(message))
                elif isinstance(message, StepTrained):
                    yield from some(self._trained(message))
                elif isinstance(message, BatchLedger):
                    yield from some(self._ledger(message))
        elif isinstance(fact, MessagePassed) and fact.direction == "out" and isinstance(fact.message, Groups):
            for group in fact.message.groups:
                yield from some(self._handed_out(group))

    def _ledger(self, ledger: BatchLedger) -> Iterator[str]:
        for request in ledger.requests:
            known = self._shadow.requests.get(request.request)
            if known is not None and known.judged and known.score != request.score:
                yield f"{request.request} was scored {known.score} first and released with {request.score}"

    def _trained(self, event: StepTrained) -> Iterator[str]:
        for sample in event.samples:
            known = self._shadow.requests.get(sample.request)
            if known is not None and known.judged and known.score is None:
                yield f"step {event.step}: {sample.request} was trained and is unscored, its verifier failed"

    def _handed_out(self, group: GroupOut) -> Iterator[str]:
        for sample in group.samples:
            known = self._shadow.requests.get(sample.request)
            if known is None:
                continue
            if not known.judged:
                yield f"{sample.request} was handed out before its verdict was journaled"
            elif known.score != sample.score:
                yield f"{sample.request} was scored {known.score} first and handed out with {sample.score}"


def _scored(event: Scored) -> Iterator[str]:
    """A score is a number, and a failure of ours has none."""
    if event.status in OURS:
        if event.score is not None:
            yield f"{event.request} was scored {event.score}, its verifier failed ({event.status})"
    elif event.score is None or not math.isfinite(event.score):
        yield f"{event.request} was scored {event.score}"
