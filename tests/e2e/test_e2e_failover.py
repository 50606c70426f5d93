"""Failover: the head dies in the middle of a step, and a standby takes over.

The standby is on another host. Nothing is lost or done twice.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from failover import HEADS, FailoverCluster
from postgres_server import why_not as no_server
from two_hosts import Job

from gleaner.actors.training.history import Node, Restart, Run, Sample, Step
from gleaner.chaos.netns import why_not
from gleaner.nodeagent.exit_codes import LOST

pytestmark = [
    pytest.mark.alone,
    pytest.mark.realprocess,
    pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}"),
    pytest.mark.skipif(bool(no_server()), reason=no_server()),
    pytest.mark.timeout(900),
]

STEPS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[FailoverCluster]:
    """One cluster for both tests, in their order: the second begins where the first leaves it."""
    with FailoverCluster(tmp_path_factory.mktemp("failover"), model_dir) as cluster:
        cluster.up()
        yield cluster


def in_mid_step(job: Job) -> None:
    """Wait until requests of a step after the newest one are being decoded."""
    done = job.step()

    def so() -> bool:
        newest = [record for record in job.records() if isinstance(record, Sample)][-1]
        return newest.step > done and newest.executing > 0

    job.wait(so, "requests in flight")


def joined_again(job: Job) -> list[str]:
    """The hosts that have joined the new head since the job continued. (A host whose hello outlives the
    change of heads comes over without a line in its own log.)"""
    records = job.records()
    goes_on = max(at for at, record in enumerate(records) if isinstance(record, Run))
    came = [record for record in records[goes_on:] if isinstance(record, Node) and record.event == "joined"]
    return [record.node for record in came]


def whole(job: Job) -> None:
    """Check that the job ends well, its audit is clean, and each step is reported once."""
    assert job.ends() == 0, job.story()
    assert job.broken(complete=True) == []
    assert [record.step for record in job.records() if isinstance(record, Step)] == list(range(1, STEPS + 1))


def test_standby_takes_over_mid_step_without_loss_or_repetition(
    cluster: FailoverCluster,
) -> None:
    job = cluster.job(f"job.steps={STEPS}")
    job.wait(lambda: job.step() >= 2, "the second step")
    in_mid_step(job)
    cluster.kill(HEADS[0])
    job.wait(lambda: cluster.leads(HEADS[1]), "the standby takes over")
    whole(job)

    assert "is the head, under term 2" in cluster.log(HEADS[1])
    assert "reserved-1" in joined_again(job)
    remote = job.remote_tokens()
    assert sum(remote.values()) > 0
    assert not [record for record in job.records() if isinstance(record, Restart)], "workers only had to wait"


@pytest.mark.long
def test_database_restart_is_harmless_and_isolated_head_is_replaced(
    cluster: FailoverCluster,
) -> None:
    cluster.start_standby(HEADS[0])
    job = cluster.job(f"job.steps={STEPS}")
    job.wait(lambda: job.step() >= 1, "the first step")
    in_mid_step(job)
    cluster.database.kill()
    cluster.database.start()
    reached = job.step()
    job.wait(lambda: job.step() > reached, "a step after the restart")
    assert cluster.leads(HEADS[1]), "it was away for less than the lease"

    in_mid_step(job)
    cluster.isolate(HEADS[1])
    assert cluster.ended(HEADS[1]) == LOST
    job.wait(lambda: cluster.leads(HEADS[0]), "the other one takes over")
    whole(job)
    assert "is the head, under term 3" in cluster.log(HEADS[0])
