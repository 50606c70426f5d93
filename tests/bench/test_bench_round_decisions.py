"""Cost of the decisions of rounds: a small race and a small plan give every figure."""

import json
from pathlib import Path

import pytest

from bench import round_decisions
from bench.round_decisions import Figure, Race


def test_race_is_over_when_the_groups_that_count_are_known() -> None:
    race = Race(10, 2)
    assert race.wanted == 8
    race.run()
    fates = race.batch.fates
    assert len(fates.kept) == 8
    assert list(fates.dropped.values()) == ["surplus"] * 2
    assert 16 <= race.finished < 20, "the surplus is aborted before it ends"
    assert race.spent_s > 0


def test_look_reads_a_race_in_which_every_response_runs() -> None:
    race = Race(10, 2)
    assert all(race.look() > 0 for _ in range(3))
    assert race.kept == 0
    assert {len(log) for group in race.batch.groups for log in group} == {3}


@pytest.mark.parametrize(("value", "met"), [(4.9, True), (5.0, False), (7.0, False)])
def test_aim_is_met_below_it(value: float, met: bool) -> None:
    assert Figure("a look", "ms", value, 5.0).met is met


def test_command_prints_and_writes_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "decisions.json"
    assert round_decisions.main(["--groups", "20", "--samples", "2", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert [(row["what"], row["unit"], row["aim"]) for row in rows] == [
        ("a look at a race of 40 requests", "ms", 5.0),
        ("a finished request, over a whole race", "us", 50.0),
        ("a plan with 6 surpluses", "s", 0.5),
    ]
    assert all(row["value"] > 0 and row["met"] is (row["value"] < row["aim"]) for row in rows)
    printed = capsys.readouterr().out.splitlines()
    for row, line in zip(rows, printed, strict=False):
        assert line.startswith(row["what"])
        assert line.endswith("met" if row["met"] else "missed")
