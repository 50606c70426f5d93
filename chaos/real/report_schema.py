"""Final report of a campaign: the form of its JSON.

Owns the structs and the sums over faults. Judges nothing (`verdict` does).
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from gleaner.chaos.real.faults import KINDS
from gleaner.chaos.real.nemesis import FaultOutcome


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts."""


class FaultReport(Part, frozen=True, kw_only=True):
    """A fault. at_s: of the campaign; broken_s: until it was mended; back_s, recovered_s: from then until
    every process was there, and until the cluster was well; None where that was not seen."""

    number: int
    kind: str
    what: str
    at_s: float
    broken_s: float | None
    back_s: float | None
    recovered_s: float | None
    missed: str
    lacking: tuple[str, ...]
    evidence: dict[str, int]


class KindReport(Part, frozen=True, kw_only=True):
    """The recoveries from one kind of fault. `fired`: injected and not missed; seconds are of the
    recovered."""

    kind: str
    fired: int
    missed: int
    recovered: int
    back_p50_s: float | None
    recovered_p50_s: float | None
    recovered_p95_s: float | None
    recovered_max_s: float | None


class JobReport(Part, frozen=True, kw_only=True):
    """A job of the campaign. `exit_code`: of its `rlctl run`, None where its end was not awaited."""

    number: int
    run_id: str
    exit_code: int | None
    steps: int
    tokens: int
    migrated: int
    violations: tuple[str, ...]


class CampaignReport(Part, frozen=True, kw_only=True):
    """The whole. ok: neither a violation nor invalid. invalid: why the campaign does not count. fired,
    missed: faults by kind. without: kinds that were left out on purpose. paths: recovery paths, how often
    each was taken. agents: node agents that ended by themselves and were started again. pace: (campaign
    time, tokens collected so far), thinned."""

    format: int = 1
    campaign: str
    seed: int
    ok: bool
    violations: tuple[str, ...]
    invalid: tuple[str, ...]
    seconds: float
    fired: dict[str, int]
    missed: dict[str, int]
    without: tuple[str, ...] = ()
    recovery: tuple[KindReport, ...]
    paths: dict[str, int]
    faults: tuple[FaultReport, ...]
    jobs: tuple[JobReport, ...]
    agents: tuple[str, ...]
    pace: tuple[tuple[float, int], ...]


MAX_PACE = 2000


def fault_report(number: int, what: str, one: FaultOutcome) -> FaultReport:
    """One fault."""
    return FaultReport(
        number=number,
        kind=one.kind,
        what=what,
        at_s=round(one.began_s, 2),
        broken_s=_rounded(None if one.mended_s is None else one.mended_s - one.began_s),
        back_s=_rounded(one.back_s),
        recovered_s=_rounded(one.recovered_s),
        missed=one.missed,
        lacking=one.lacking,
        evidence=one.evidence,
    )


def by_kind(struck: Iterable[FaultOutcome]) -> list[KindReport]:
    """The recoveries of every kind that was injected, in the order of `KINDS`."""
    every = list(struck)
    found = []
    for kind in KINDS:
        of_kind = [one for one in every if one.kind == kind]
        fired = [one for one in of_kind if not one.missed]
        recovered = [one.recovered_s for one in fired if one.recovered_s is not None]
        back = [one.back_s for one in fired if one.back_s is not None]
        if of_kind:
            found.append(
                KindReport(
                    kind=kind,
                    fired=len(fired),
                    missed=len(of_kind) - len(fired),
                    recovered=len(recovered),
                    back_p50_s=_rounded(percentile(back, 50)),
                    recovered_p50_s=_rounded(percentile(recovered, 50)),
                    recovered_p95_s=_rounded(percentile(recovered, 95)),
                    recovered_max_s=_rounded(max(recovered, default=None)),
                )
            )
    return found


def percentile(values: Sequence[float], share: float) -> float | None:
    """Percentile by nearest rank: a measured value, never one between two; None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share / 100 * len(values)) - 1)]


def thinned(pace: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """At most `MAX_PACE` of them, the last one too."""
    size = -(-len(pace) // MAX_PACE) or 1
    return [(round(at_s, 2), tokens) for at_s, tokens in [*pace[::size], *pace[-1:]]]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
