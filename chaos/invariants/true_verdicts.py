"""True verdicts: one for each response, by the verifier, of the whole response.

Owns the answers of verifiers that are not journaled yet, and the comparison of journaled verdicts with the
true score. I7 covers what happens to a verdict afterwards.
"""

from collections.abc import Iterable, Iterator

from gleaner.actors.reward.verdicts import OURS
from gleaner.actors.rollout.state.events import Scored
from gleaner.chaos.invariants.check import Check, some
from gleaner.chaos.invariants.facts import Committed, Fact, VerifierAnswered
from gleaner.chaos.invariants.service_facts import response_key
from gleaner.chaos.invariants.shadow import Shadow
from gleaner.chaos.invariants.truth import Truth

KEPT = 4096
"""Answers of verifiers that are kept; more responses are never between a verifier and the journal."""


class TrueVerdicts(Check):
    """See the module."""

    fact_kinds = (Committed, VerifierAnswered)
    committed_kinds = (Scored,)
    name = "verdicts"
    promise = "a journaled score is what a verifier gave to the whole response; a failure gives none"
    meaning = (
        "If this fails, a response got the reward of a part of it, of another response, or of no verifier at "
        "all, and the policy is trained towards it."
    )

    def __init__(self, shadow: Shadow, truth: Truth) -> None:
        self._shadow, self._truth = shadow, truth
        self._answered: dict[bytes, None] = {}

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, VerifierAnswered):
            self._answered.pop(key := response_key(fact.split, fact.index, fact.tokens), None)
            self._answered[key] = None
            if len(self._answered) > KEPT:
                del self._answered[next(iter(self._answered))]
        elif isinstance(fact, Committed):
            for message in fact.messages:
                if isinstance(message, Scored) and message.status not in OURS and message.score is not None:
                    yield from some(self._scored(message, message.score))

    def _scored(self, event: Scored, score: float) -> Iterator[str]:
        known = self._shadow.requests.get(event.request)
        if known is None or known.dropped or known.judged or not known.finished:
            return  # it does not count
        asked, tokens = known.asked, known.tokens.tobytes()
        if not tokens:
            if score != 0.0:
                yield f"{event.request} was scored {score} and has no token"
            return
        true = self._truth.score(asked.split, asked.index, tokens)
        what = f"its response to problem {asked.index} of {asked.split}, {len(tokens) // 4} tokens"
        if score != true:
            yield f"{event.request} was scored {score}; {what}, has {true}"
        elif response_key(asked.split, asked.index, tokens) not in self._answered:
            yield f"{event.request} was scored {score}; no verifier scored {what}"
