"""Jobs of a reward service: which one a request belongs to, and their figures for Prometheus.

A client names its job in a header. Names are not authenticated: clients with an API key trust each other so
far. Without the header the job is that of the API key, or of the host.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.protocol.reward import JOB_HEADER, JobState

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def job_of(headers: Mapping[str, str], remote: str) -> str:
    """The job of a request. remote: address of the client. Raises BadAsk."""
    name = headers.get(JOB_HEADER)
    if name is not None:
        if not _NAME.fullmatch(name):
            raise BadAsk(f"expected 1 to 64 letters, digits or ._-, got {name!r:.80}", JOB_HEADER)
        return name
    shown = headers.get("Authorization") or headers.get("X-API-Key")
    if shown:
        return f"key-{hashlib.blake2b(shown.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"
    return f"host-{remote}"


def metrics(jobs: Iterable[JobState]) -> bytes:
    """The figures of the jobs as text."""
    registry = CollectorRegistry()

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"gleaner_reward_job_{name}", text, ("job", *labels), registry=registry)

    items = gauge("items", "Open items, waiting or with a worker.", "state")
    scored = gauge("scored_items", "Items that got a verdict from a worker.")
    seconds = gauge("worker_seconds", "Seconds of workers that these took.", "stage")
    lost = gauge("lost_items", "Items that ended the workers of all their tries.")
    refused = gauge("refused_items", "Items that were not taken.")
    guaranteed = gauge("guaranteed_workers", "Workers of each stage that the job is guaranteed.")
    sick = gauge("sick", "1 while the job is refused, since too many of its items were lost.")
    for job in jobs:
        items.labels(job.name, "queued").set(job.queued)
        items.labels(job.name, "running").set(job.running)
        scored.labels(job.name).set(job.scored)
        for stage, worker_s in job.worker_s.items():
            seconds.labels(job.name, stage).set(worker_s)
        lost.labels(job.name).set(job.lost)
        refused.labels(job.name).set(job.refused)
        guaranteed.labels(job.name).set(job.guaranteed)
        sick.labels(job.name).set(job.sick_for_s > 0)
    return generate_latest(registry)
