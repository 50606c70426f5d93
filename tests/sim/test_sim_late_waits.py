"""Late waits: a wait is late when a component hangs, not when a job is large."""

import logging
from dataclasses import replace

import pytest

from gleaner.configs.load import load
from gleaner.rlctl.commands.simulate import PRESETS
from gleaner.rlctl.simulate import baseline_of
from gleaner.rlctl.what_if_setup import setting_of
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.run_setup import RESERVED

PAPER = "rlboost-14b"
FROZEN_AT_S = 300.0
STALL_S = 900.0


def late(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines about waits of the job's actors that passed their deadlines."""
    lines = [record.getMessage() for record in caplog.records if record.name == "supervisor.waits"]
    return [line for line in lines if line.startswith(("training/", "rollout/", f"{RESERVED}/engine"))]


@pytest.mark.long
def test_no_wait_is_late_in_single_host_paper_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The host rolls out for ten minutes, then trains on all of it at once; nothing is measured before."""
    setting = baseline_of(setting_of(load(PAPER, ["job.steps=1"]), PRESETS[PAPER]))
    with caplog.at_level(logging.WARNING, logger="supervisor.waits"):
        outcome = SimCluster(setting).run()
    assert outcome.ended == "done", outcome.reason
    assert late(caplog) == []


def test_stalled_trainer_makes_its_waits_late_in_paper_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The trainer hangs for good and is not replaced. The limits of its waits follow its own times, but the
    limits exist."""
    never = ["liveness.hung_silences=100000", "liveness.start_s=1000000"]
    setting = baseline_of(setting_of(load(PAPER, ["job.steps=1", *never]), PRESETS[PAPER]))
    cluster = SimCluster(replace(setting, deadline_s=STALL_S))
    breaking = FaultInjector(cluster)
    with caplog.at_level(logging.WARNING, logger="supervisor.waits"):
        breaking.at(FROZEN_AT_S, lambda: breaking.freeze(RESERVED, "trainer"))
        outcome = cluster.run()
    assert outcome.ended != "done"
    late_for = {line.partition(" s for ")[2] for line in late(caplog)}
    assert "the holder of a name on training/trainer: deadline passed" in late_for
    assert "room for requests on the instances: deadline passed" in late_for
