"""Answers of a proxy while it plans: plans are made in their phase alone, beside what is asked."""

import json

import pytest

from bench.reward.planning_beside import main


@pytest.mark.long
def test_plans_are_made_in_their_phase_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--items", "300", "--batches", "3", "--seconds", "1.5", "--rounds", "1", "--json"]) == 0
    idle, planning = json.loads(capsys.readouterr().out)
    assert (idle["phase"], planning["phase"]) == ("idle", "planning")
    assert idle["asks"] == planning["asks"] == 300
    assert planning["plans"] > idle["plans"]
    assert 0 < idle["p50_ms"] <= idle["p99_ms"]
