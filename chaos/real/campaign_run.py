"""Run of a campaign on real processes, from an empty folder to its verdict.

It leaves nothing but the folder. Owns the order: a cluster, a model, the nemesis, an ordered end, a search
for orphans, the audit of every job. The cluster is taken down in any case (a violation, Ctrl-C, a defect of
ours).
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gleaner.actors.training.history import HistoryError
from gleaner.chaos.invariants.stopped_run import history_faults, report_faults
from gleaner.chaos.orphans import left_behind
from gleaner.chaos.real.campaign import Campaign
from gleaner.chaos.real.cluster import Cluster
from gleaner.chaos.real.job import Job, Jobs
from gleaner.chaos.real.nemesis import Account, Nemesis
from gleaner.chaos.real.paths import defects, of_history, of_log
from gleaner.chaos.real.report_schema import CampaignReport, JobReport
from gleaner.chaos.real.verdict import judge
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.audit.run_files import gather
from gleaner.rlctl.errors import CommandError

MIB = 1 << 20
BOOKS_KEPT = 8
"""Jobs whose journals are still on the disks of the hosts (they keep those of the newest 16); the records of
an earlier one were checked by its own `rlctl run`, at its end."""
MAX_DEFECTS = 10


def run(campaign: Campaign, seed: int, root: Path, tell: Callable[[Account], None]) -> CampaignReport:
    """See the module. root: an empty folder that keeps journals, logs and histories.

    Raises NoNamespaces, ClusterFailed, JobsFailed, ConfigError where the start failed.
    """
    began_s = time.monotonic()
    size = (campaign.fleet.preemptible, campaign.fleet.disk_mib * MIB)
    with Cluster(root, *size) as cluster, _kept_if_cut_short(cluster):
        model = Jobs.make_model(cluster.models, campaign.settings("", seed))
        jobs = Jobs(cluster, campaign.settings(str(model), seed))
        nemesis = Nemesis(cluster, jobs, campaign, seed, tell)
        nemesis.run()
        account = nemesis.account
        account.doing = "taking the cluster down in order"
        tell(account)
        unfinished = jobs.now
        account.violations += [f"end: {text}" for text in _end(cluster, unfinished)]
        disks = cluster.keep_disks()
    account.doing = "checking the books"
    tell(account)
    every_job = [*jobs.done, *([unfinished] if unfinished is not None else [])]
    books = [_job_report(job, disks, audited=job in every_job[-BOOKS_KEPT:]) for job in every_job]
    for job in every_job:
        account.violations += [
            f"end: left behind: {text}" for text in (left_behind(job.run) if job.run else [])
        ]
    paths = sum((of_history(job.records) for job in every_job), Counter[str]())
    logs = [*disks, cluster.root]
    paths += sum((of_log(lines) for lines in _logs(logs)), Counter[str]())
    found = [text for lines in _logs(logs) for text in defects(lines)]
    account.violations += [f"defect: {text}" for text in found[:MAX_DEFECTS]]
    return judge(campaign, seed, account, books, paths, time.monotonic() - began_s)


@contextmanager
def _kept_if_cut_short(cluster: Cluster) -> Iterator[None]:
    """A user who stopped it, or looks for the cause of a failure, needs the hosts' logs; the hosts' disks are
    removed."""
    try:
        yield
    except BaseException:
        cluster.kill_all()
        with contextlib.suppress(OSError):
            cluster.keep_disks()
        raise


def _end(cluster: Cluster, unfinished: Job | None) -> Iterator[str]:
    """Take the cluster down as its owner would; return the failures."""
    if unfinished is not None:  # the campaign gave up on it; so it is no fault of the ordered end
        unfinished.process.kill()
        unfinished.process.wait()
    yield from cluster.stop_in_order()
    if unfinished is None:
        yield from cluster.left()


def _job_report(job: Job, disks: Sequence[Path], *, audited: bool) -> JobReport:
    report = job.report()
    violations = list(_broken(job, disks)) if audited else []
    if report is not None and not audited:
        violations += report.violations
    return JobReport(
        number=job.number,
        run_id=job.run.id if job.run is not None else "",
        exit_code=job.code,
        steps=job.step,
        tokens=job.tokens,
        migrated=report.requests.migrated if report is not None else 0,
        violations=tuple(violations),
    )


def _broken(job: Job, disks: Sequence[Path]) -> Iterator[str]:
    """Invariants that its journals, checkpoints, history and report break."""
    if job.run is None:
        return
    complete = job.code == 0
    try:
        evidence = gather(job.run.path, job.run.config(), complete=complete, state_dirs=disks)
        yield from map(str, audit(evidence))
        yield from history_faults(job.records, evidence, complete=complete)
        report = job.report()
        if report is not None and complete:
            yield from report_faults(report, evidence)
        elif complete:
            yield "report: there is none"
    except (CommandError, HistoryError, msgspec.MsgspecError) as problem:
        yield f"cannot be checked: {problem}"


def _logs(roots: Iterable[Path]) -> Iterator[list[str]]:
    """The lines of every log below these folders, and of the output of the jobs' drivers."""
    for root in roots:
        for log in sorted(root.glob("logs/*")):
            if log.is_file():
                yield log.read_text(errors="replace").splitlines()
