"""Verdict on a campaign: its violations, and whether it is valid. Pure.

A campaign in which a fault never fired, or a recovery never ran, proves nothing about them: it is invalid,
and as bad as one with a violation.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from gleaner.chaos.real.campaign import Campaign
from gleaner.chaos.real.faults import KINDS, words
from gleaner.chaos.real.nemesis import Account
from gleaner.chaos.real.paths import in_order
from gleaner.chaos.real.report_schema import CampaignReport, JobReport, by_kind, fault_report, thinned


def judge(
    campaign: Campaign,
    seed: int,
    account: Account,
    jobs: Sequence[JobReport],
    paths: Mapping[str, int],
    seconds: float,
) -> CampaignReport:
    """The whole report, in its final form."""
    of_jobs = [f"{job.run_id or f'job {job.number}'}: {text}" for job in jobs for text in job.violations]
    violations = (*account.violations, *of_jobs)
    invalid = tuple(invalidities(campaign, account, paths))
    fired, missed = counts(account)
    return CampaignReport(
        campaign=campaign.name,
        seed=seed,
        ok=not violations and not invalid,
        violations=violations,
        invalid=invalid,
        seconds=round(seconds, 1),
        fired=fired,
        missed=missed,
        without=campaign.without,
        recovery=tuple(by_kind(account.struck)),
        paths=in_order(paths),
        faults=tuple(fault_report(n, words(one.fault), one) for n, one in enumerate(account.struck, 1)),
        jobs=tuple(jobs),
        agents=tuple(account.restarts),
        pace=tuple(thinned(account.pace)),
    )


def counts(account: Account) -> tuple[dict[str, int], dict[str, int]]:
    """How often each kind fired, and how often it was missed."""
    fired = Counter(one.kind for one in account.struck if not one.missed)
    missed = Counter(one.kind for one in account.struck if one.missed)
    return _of_kinds(fired), _of_kinds(missed)


def invalidities(campaign: Campaign, account: Account, paths: Mapping[str, int]) -> list[str]:
    """Why the campaign is invalid, as texts; none where it is valid."""
    fired, _ = counts(account)
    why = [f"no {kind} fired" for kind in campaign.must_fire if kind not in fired]
    if campaign.faults and sum(fired.values()) < campaign.faults:
        why.append(f"{sum(fired.values())} of {campaign.faults} faults fired")
    if not fired:
        why.append("nothing was broken")
    why += [f"the path {name!r} was never taken" for name in campaign.paths if not paths.get(name)]
    return why


def _of_kinds(counted: Mapping[str, int]) -> dict[str, int]:
    return {kind: counted[kind] for kind in KINDS if counted.get(kind)}
