"""Bench of the dispatch of reward items: every case ends the items that it counts."""

import json

import pytest

from bench.reward.dispatch import JOBS, main


def test_each_case_scores_its_items(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--items", "400", "--ended", "200", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [cost["jobs"] for cost in found] == [0, *JOBS]
    assert all(200 <= cost["scored"] < 300 for cost in found)
    assert all(min(cost["submit_us"], cost["settle_us"], cost["give_us"]) > 0 for cost in found)


def test_more_ended_than_half_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--items", "10", "--ended", "6"])
    assert "expected 1 to half of --items (5)" in capsys.readouterr().err
