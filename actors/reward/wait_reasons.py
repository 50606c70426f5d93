"""Why a reward item waits, as a text. Pure: reads what `ItemDispatch` holds."""

from collections.abc import Iterator

from gleaner.actors.reward.assignment.hosts import ScoringHost
from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.item_dispatch import ItemDispatch


def why_waits(dispatch: ItemDispatch, item: RewardItem) -> str:
    """The first of these that holds: no host has workers of its stage, all that have them are barred, none of
    the workers is in use, its job has its quota of workers, another job lacks guaranteed workers or more of
    its weighted share, all workers have items. "" for none: the item is just about to be given."""
    stage, hosts = item.stage, dispatch.hosts
    offering = [host for host in hosts if host.most.get(stage, 0)]
    if not offering:
        return f"no host offers workers of {stage}"
    barred = _named(host for host in offering if host.barred)
    if all(host.barred for host in offering):
        return f"no host with workers of {stage} gets new items: {barred}"
    left_out = f"; no new items go to {barred}" if barred else ""
    workers, ahead = hosts.workers(stage), hosts.ahead(stage)
    if not workers:
        return f"no worker of {stage} is in use: the plan has none now{left_out}"
    if quota := dispatch.jobs.quota_reached(item.job, stage, ahead):
        return f"{_job(item)} has its quota of {stage}: {quota} (reward.jobs.max_workers)"
    first = dispatch.jobs.next_of(stage, dispatch.items.jobs_waiting_in(stage), workers, ahead)
    if first and item.job not in first and dispatch.jobs.get(first[0]).lacks(stage, ahead):
        guaranteed = dispatch.jobs.get(first[0]).guaranteed
        return (
            f"job {first[0]} lacks guaranteed workers of {stage} and goes first: it has "
            f"{_has(dispatch, first[0], stage)}, guaranteed {guaranteed} (reward.jobs.guaranteed){left_out}"
        )
    if first and item.job not in first:
        return (
            f"job {first[0]} lacks most of its weighted share and goes first: it has "
            f"{_has(dispatch, first[0], stage)}, {_job(item)} {_has(dispatch, item.job, stage)}{left_out}"
        )
    if hosts.choose(stage) is None:
        return f"all workers of {stage} ({workers}) have as many items as they take{left_out}"
    return ""


def _named(hosts: Iterator[ScoringHost]) -> str:
    return ", ".join(f"{host.name} ({', '.join(sorted(host.barred))})" for host in hosts)


def _job(item: RewardItem) -> str:
    return f"job {item.job}" if item.job else "its job"


def _has(dispatch: ItemDispatch, job: str, stage: str) -> str:
    """Items of a job with workers of a stage, and its weight."""
    found = next(one for one in dispatch.jobs if one.name == job)
    return f"{found.by_stage.get(stage, 0)} items with workers, weight {found.weight:g}"
