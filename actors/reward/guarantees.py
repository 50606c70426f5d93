"""Guarantees: whether there can be as many reward workers as the jobs of a service are guaranteed. Pure."""

from gleaner.actors.reward.stages import Pipelines
from gleaner.configs.schema import Reward


def problem(pipelines: Pipelines, reward: Reward, hosts: int | None, cores: int) -> str:
    """Why these settings cannot keep `reward.jobs.guaranteed`, "" if they can. hosts: reward hosts that there
    will be beside the service's own workers, each with so many cores; None: any number may join."""
    wanted, planned = sum(reward.jobs.guaranteed.values()), reward.planner.max_workers
    if not wanted:
        return ""
    if planned and wanted > planned:
        return _text(wanted, f"reward.planner.max_workers is {planned}", "lower the guarantees, or raise it")
    for stage in pipelines.names:
        of_host = pipelines.host_workers(cores).get(stage, 0)
        if hosts is None and of_host:
            continue
        own = pipelines.workers().get(stage, 0)
        have = own + (hosts or 0) * of_host
        if wanted > have:
            there = f"there are {have} workers of {stage}: {own} own, {hosts or 0} hosts with {of_host}"
            return _text(wanted, there, "lower the guarantees, or start more workers or hosts")
    return ""


def _text(wanted: int, there: str, remedy: str) -> str:
    return f"reward.jobs.guaranteed: {wanted} workers are guaranteed to all jobs, and {there}: {remedy}"
