"""I7: every reward counts once, from the journal, the verdicts and the samples that were handed out.

What runs in a sandbox is not looked at here: a simulated scorer runs nothing.
"""

import math
from collections.abc import Iterable, Iterator

from actors.rollout.events import Scored
from actors.rollout.messages import BatchLedger, GroupOut, Groups
from chaos.invariants.check import Check, some
from chaos.invariants.facts import Committed, Fact, Said
from chaos.invariants.shadow import Shadow


class RewardsOnce(Check):
    """See the module."""

    sees, hears = (Committed, Said), (Groups,)
    name = "I7"
    promise = "every reward counts once, and is the one of its response"
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
                if isinstance(message, Scored) and not math.isfinite(message.score):
                    yield f"{message.request} was scored {message.score}"
                elif isinstance(message, BatchLedger):
                    yield from some(self._ledger(message))
        elif isinstance(fact, Said) and fact.direction == "out" and isinstance(fact.message, Groups):
            for group in fact.message.groups:
                yield from some(self._handed_out(group))

    def _ledger(self, ledger: BatchLedger) -> Iterator[str]:
        for request in ledger.requests:
            known = self._shadow.requests.get(request.request)
            if known is not None and known.score is not None and known.score != request.score:
                yield f"{request.request} was scored {known.score} first and released with {request.score}"

    def _handed_out(self, group: GroupOut) -> Iterator[str]:
        for sample in group.samples:
            known = self._shadow.requests.get(sample.request)
            if known is None:
                continue
            if known.score is None:
                yield f"{sample.request} was handed out before its score was journaled"
            elif known.score != sample.score:
                yield f"{sample.request} was scored {known.score} first and handed out with {sample.score}"
