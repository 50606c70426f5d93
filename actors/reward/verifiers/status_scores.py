"""`StatusScores`: a verifier with the settings' scores of statuses (`[reward.scores]`). Pure.

It is the only place where a status other than "ok" gets a score; verifiers give 0. A status of ours never
scores.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from gleaner.actors.reward.carried import Carried
from gleaner.actors.reward.case_limits import CaseLimits
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verdicts import OK, OURS, PROGRAMS, Judgement
from gleaner.actors.reward.verifiers.port import (
    BadVerifier,
    NeedsTools,
    Trial,
    Tries,
    Verifier,
    VerifierSpec,
    open_stage,
    score_stage,
    scored_within,
)


class StatusScores:
    """See the module. A `Verifier`, and all that the one inside it is. Raises `BadVerifier`."""

    def __init__(self, verifier: Verifier, spec: VerifierSpec) -> None:
        self._verifier, self._scores = verifier, dict(spec.scores)
        for status, score in self._scores.items():
            where = f"task {spec.task}: verifier {spec.name}: the score of {status}"
            if status in OURS:
                raise BadVerifier(f"{where}: it is a failure of ours, which never scores")
            if status not in PROGRAMS - {OK}:
                raise BadVerifier(f"{where}: expected one of {', '.join(sorted(PROGRAMS - {OK}))}")
            if not math.isfinite(score):
                raise BadVerifier(f"{where}: expected a finite number, got {score}")

    def open(self) -> None:
        """See `Verifier`."""
        self._verifier.open()

    def close(self) -> None:
        """See `Verifier`."""
        self._verifier.close()

    def check(self, entry: Entry) -> str:
        """See `Verifier`."""
        return self._verifier.check(entry)

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        """See `Verifier`."""
        return self.score_within(items, [None] * len(items))

    def score_within(
        self, items: Sequence[tuple[Entry, str]], limits: Sequence[CaseLimits | None]
    ) -> list[Judgement]:
        """See `LimitsTests`."""
        return [self._scored(judged) for judged in scored_within(self._verifier, items, limits)]

    def open_stage(self, stage: str) -> None:
        """See `Staged`."""
        open_stage(self._verifier, stage)

    def score_stage(
        self, stage: str, entry: Entry, response: str, carried: Carried, limits: CaseLimits | None
    ) -> Judgement | Carried:
        """See `Staged`."""
        found = score_stage(self._verifier, stage, entry, response, carried, limits)
        return self._scored(found) if isinstance(found, Judgement) else found

    def try_one(self, entry: Entry, response: str) -> Trial:
        """See `Tries`."""
        if not isinstance(self._verifier, Tries):
            return Trial(judgement=self.score_all([(entry, response)])[0])
        trial = self._verifier.try_one(entry, response)
        return replace(trial, judgement=self._scored(trial.judgement))

    def missing(self) -> str:
        """See `NeedsTools`."""
        return self._verifier.missing() if isinstance(self._verifier, NeedsTools) else ""

    def _scored(self, judged: Judgement) -> Judgement:
        score = self._scores.get(judged.status)
        return judged if score is None else replace(judged, score=score)
