"""Waits are late when something stands still, not when a job is large."""

import logging

import pytest

from configs.load import load
from rlctl.commands.simulate import PRESETS
from rlctl.modelled import setting_of
from rlctl.simulate import baseline_of
from sim.cluster import SimCluster
from sim.setting import RESERVED

PAPER = "rlboost-14b"


def late(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines about waits of the job's actors that passed their deadlines."""
    lines = [record.getMessage() for record in caplog.records if record.name == "supervisor.waits"]
    return [line for line in lines if line.startswith(("training/", "rollout/", f"{RESERVED}/engine"))]


def test_no_wait_of_a_job_of_the_papers_size_is_late_when_one_host_does_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It rolls out for ten minutes, then trains on all of it at once; nothing is measured before."""
    setting = baseline_of(setting_of(load(PAPER, ["job.steps=1"]), PRESETS[PAPER]))
    with caplog.at_level(logging.WARNING, logger="supervisor.waits"):
        outcome = SimCluster(setting).run()
    assert outcome.ended == "done", outcome.reason
    assert late(caplog) == []
