"""Result of a run, and tally of many: faults, paths, violations, validity.

Owns both shapes, their JSON, and when a campaign is valid. Pure.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from gleaner.chaos.coverage import never_taken, taken
from gleaner.chaos.plan import Loaded


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """A violation. at_s: virtual seconds."""

    check: str
    at_s: float
    text: str


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run. counts: see `coverage`; shapes: of what fired, see `shapes`. ended: done, failed, late,
    stopped, or hung (`hang_detector`)."""

    seed: int
    trace_hash: str = ""
    ended: str = "done"
    virtual_s: float = 0.0
    wall_s: float = 0.0
    steps: int = 0
    fired: dict[str, int] = {}
    shapes: dict[str, int] = {}
    missed: dict[str, int] = {}
    counts: dict[str, int] = {}
    broken: tuple[Broken, ...] = ()

    @property
    def ok(self) -> bool:
        """No violation was found."""
        return not self.broken


class CampaignReport(msgspec.Struct, frozen=True, kw_only=True):
    """A whole campaign. valid: every wanted fault fired and every wanted path was taken. trace_hash: of all
    runs, in the order of their seeds; two campaigns with the same one had the same histories."""

    campaign: str
    seeds: str
    runs: int
    ok: bool
    valid: bool
    violations: int
    never_fired: list[str]
    never_taken: list[str]
    fired: dict[str, int]
    shapes: dict[str, int]
    missed: dict[str, int]
    paths: dict[str, int]
    counts: dict[str, int]
    trace_hash: str
    virtual_s: float
    wall_s: float
    results: list[RunReport]


def tally(
    loaded: Loaded, seeds: str, runs: Iterable[RunReport], wall_s: float, *, whole: bool = True
) -> CampaignReport:
    """Add runs up. whole: all seeds were run; for an interrupted campaign no fault or path is reported
    missing."""
    ordered = sorted(runs, key=lambda run: run.seed)
    fired, shapes, missed, counts = (_sum(ordered, name) for name in ("fired", "shapes", "missed", "counts"))
    campaign = loaded.campaign
    unfired: list[str] = []
    if whole:
        unfired = [kind for kind in campaign.wanted_faults if not fired.get(kind)]
        unfired += [shape for shape in campaign.wanted_shapes if not shapes.get(shape)]
    untaken = never_taken(counts, campaign.paths) if whole else []
    return CampaignReport(
        campaign=loaded.name,
        seeds=seeds,
        runs=len(ordered),
        ok=all(run.ok for run in ordered) and bool(ordered),
        valid=not unfired and not untaken,
        violations=sum(not run.ok for run in ordered),
        never_fired=unfired,
        never_taken=untaken,
        fired=fired,
        shapes=shapes,
        missed=missed,
        paths=taken(counts),
        counts=counts,
        trace_hash=hash_of(ordered),
        virtual_s=sum(run.virtual_s for run in ordered),
        wall_s=wall_s,
        results=ordered,
    )


def hash_of(ordered: Sequence[RunReport]) -> str:
    """One number for all histories."""
    text = "".join(f"{run.seed} {run.trace_hash}\n" for run in ordered)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _sum(runs: Sequence[RunReport], name: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for run in runs:
        total.update(getattr(run, name))
    return dict(sorted(total.items()))
