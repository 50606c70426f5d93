"""`WithJudge`: a verifier with a judge beside it.

The verifier scores first. The judge is called only for responses that it scored, and that reach the gate:
a judge is dear, and has no say about a program that does not run.
"""

from collections.abc import Sequence

from gleaner.actors.reward.carried import Carried
from gleaner.actors.reward.case_limits import CaseLimits
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verdicts import OK, OURS, Judgement
from gleaner.actors.reward.verifiers.functions import MAX_DETAIL
from gleaner.actors.reward.verifiers.port import (
    NeedsTools,
    Trial,
    Verifier,
    open_stage,
    score_stage,
    scored_within,
    trial_of,
)

JUDGE = "judge"
"""The judge's stage."""
OWN = "own"
"""Name of the part that is the verifier's own score."""


class WithJudge:
    """A `Verifier`. weight: part of the score that is the judge's. gate: lowest own score with which it is
    called."""

    def __init__(self, own: Verifier, judge: Verifier, *, weight: float, gate: float) -> None:
        self._own, self._judge, self._weight, self._gate = own, judge, weight, gate

    def open(self) -> None:
        """See `Verifier`."""
        self._judge.open()
        self._own.open()

    def close(self) -> None:
        """See `Verifier`."""
        self._own.close()
        self._judge.close()

    def check(self, entry: Entry) -> str:
        """See `Verifier`: both can use it."""
        return self._own.check(entry) or self._judge.check(entry)

    def missing(self) -> str:
        """See `NeedsTools`: those of the own verifier."""
        return self._own.missing() if isinstance(self._own, NeedsTools) else ""

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        """See `Verifier`."""
        return self.score_within(items, [None] * len(items))

    def score_within(
        self, items: Sequence[tuple[Entry, str]], limits: Sequence[CaseLimits | None]
    ) -> list[Judgement]:
        """See `LimitsTests`: the own verifier's tests may have limits."""
        found = scored_within(self._own, items, limits)
        passed = [at for at, own in enumerate(found) if self._passes(own)]
        judged = dict(zip(passed, self._judge.score_all([items[at] for at in passed]), strict=True))
        return [self._joined(own, judged.get(at)) for at, own in enumerate(found)]

    def try_one(self, entry: Entry, response: str) -> Trial:
        """See `Tries`: the own trial, with the judge's texts behind what is printed."""
        own, judge = trial_of(self._own, entry, response), None
        if self._passes(own.judgement):
            judge = trial_of(self._judge, entry, response)
        return Trial(
            judgement=self._joined(own.judgement, judge.judgement if judge else None),
            read=own.read,
            printed="\n".join(one.printed for one in (own, judge) if one and one.printed),
            refused=own.refused,
        )

    def open_stage(self, stage: str) -> None:
        """See `Staged`: the judge has a stage of its own."""
        if stage == JUDGE:
            self._judge.open()
        else:
            open_stage(self._own, stage)

    def score_stage(
        self, stage: str, entry: Entry, response: str, carried: Carried, limits: CaseLimits | None
    ) -> Judgement | Carried:
        """See `Staged`: what passes the gate goes to the judge."""
        if stage == JUDGE:
            own = carried.judgement()
            return self._joined(own, self._judge.score_all([(entry, response)])[0])
        found = score_stage(self._own, stage, entry, response, carried, limits)
        if isinstance(found, Carried):
            return found
        return Carried.of_own(found) if self._passes(found) else self._joined(found, None)

    def _passes(self, own: Judgement) -> bool:
        return own.status == OK and own.score >= self._gate

    def _joined(self, own: Judgement, judge: Judgement | None) -> Judgement:
        """The weighted score; a status of the own verifier, or one of ours from the judge, is the result."""
        if own.status != OK:
            return own
        if judge is not None and judge.status in OURS:
            return judge
        score = (1 - self._weight) * own.score + (self._weight * judge.score if judge else 0.0)
        parts = {**own.parts, OWN: own.score, **(judge.parts if judge else {})}
        detail = "; ".join(one.detail for one in (own, judge) if one and one.detail)
        return Judgement(score, detail=detail[:MAX_DETAIL], parts=parts, cpu_s=own.cpu_s, tests=own.tests)
