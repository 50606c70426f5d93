"""Which journals of a job survive a power loss: those of steps always, all of them if the job wants that."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from whole_system import SMALL

from gleaner.actors.training.records import Step
from gleaner.configs.load import load
from gleaner.sim.cluster import SimCluster
from gleaner.sim.hosts import Host
from gleaner.sim.run_setup import RunSetup


@contextmanager
def job_with_one_step(journal_fsync: str) -> Iterator[SimCluster]:
    """A job in the middle of its second step, whose disks know what is not stored yet."""
    setting = load("quickstart", [*SMALL, f"job.journal_fsync={journal_fsync}"])
    cluster = SimCluster(RunSetup(setting, seed=4, deadline_s=200.0))
    for host in cluster.hosts.values():
        host.disk.track_unsure()
    cluster.begin()
    until_s = 0.0
    while not any(isinstance(record, Step) for record in cluster.history):
        until_s += 0.5
        assert not cluster.advance(until_s)
    yield cluster
    cluster.finish(stopped=True)


def changed(host: Host, seed: int) -> set[str]:
    """The journals from which a power loss takes something."""
    before = {place: host.disk.view(place).all_rows() for place in host.disk.places()}
    host.power_off()
    host.disk.lose_power(random.Random(seed))
    return {place for place, rows in before.items() if host.disk.view(place).all_rows() != rows}


@pytest.mark.parametrize("seed", range(3))
def test_power_loss_of_a_reserved_host_takes_no_record_of_a_step(seed: int) -> None:
    with job_with_one_step("step") as cluster:
        records = f"journal/{cluster.job.run_id}/agent.sqlite"
        host = cluster.hosts["reserved-1"]
        assert [place for place in host.disk.places() if place.endswith(records)]
        assert not [place for place in changed(host, seed) if place.endswith(records)]


def test_power_loss_takes_from_the_head_what_is_not_forced_out() -> None:
    taken: set[str] = set()
    for seed in range(3):
        with job_with_one_step("step") as cluster:
            taken |= changed(cluster.hosts["head"], seed)
    assert any(place.endswith("/rollout.sqlite") for place in taken)


@pytest.mark.parametrize("seed", range(3))
def test_power_loss_takes_nothing_where_every_commit_is_forced_out(seed: int) -> None:
    with job_with_one_step("commit") as cluster:
        for name in ("head", "reserved-1"):
            assert changed(cluster.hosts[name], seed) == set()
