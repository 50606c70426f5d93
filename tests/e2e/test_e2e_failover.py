"""The head dies in the middle of a step; a standby on another host goes on: nothing is lost or done twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from failover import HEADS, FailoverCluster
from postgres_server import why_not as no_server

from actors.training.history import Restart, Sample, Step
from chaos.netns import why_not

pytestmark = [
    pytest.mark.realprocess,
    pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}"),
    pytest.mark.skipif(bool(no_server()), reason=no_server()),
    pytest.mark.timeout(400),
]

STEPS = 8


@pytest.fixture
def cluster(tmp_path: Path, model_dir: Path) -> Iterator[FailoverCluster]:
    with FailoverCluster(tmp_path, model_dir) as cluster:
        cluster.up()
        yield cluster


def test_a_head_that_dies_in_mid_step_is_followed_by_its_standby_without_loss_or_repetition(
    cluster: FailoverCluster,
) -> None:
    job = cluster.job(STEPS)
    job.wait(lambda: job.step() >= 2, "the second step")
    done = job.step()

    def in_mid_step() -> bool:
        newest = [record for record in job.records() if isinstance(record, Sample)][-1]
        return newest.step > done and newest.executing > 0

    job.wait(in_mid_step, "requests in flight")
    cluster.kill(HEADS[0])
    job.wait(lambda: cluster.leads(HEADS[1]), "the standby takes over")
    assert job.ends() == 0, job.story()

    assert job.broken() == []
    assert [record.step for record in job.records() if isinstance(record, Step)] == list(range(1, STEPS + 1))
    assert "is the head, under term 2" in cluster.log(HEADS[1])
    assert "in touch with the head" in cluster.log("reserved-1").partition("the head does not answer")[2]
    remote = job.remote_tokens()
    assert sum(remote.values()) > 0
    assert not [record for record in job.records() if isinstance(record, Restart)], "workers only had to wait"
