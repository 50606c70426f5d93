"""`rlctl rounds`: figures of a run with rounds."""

import json
from pathlib import Path

import pytest

from gleaner.actors.training.history import HistoryWriter
from gleaner.actors.training.records import AnyRecord, Round, Step
from gleaner.configs.load import dump, load
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.round_table import round_table


def step(number: int) -> Step:
    return Step(
        t_s=4.0 * number, step=number, reward=0.25 * number, samples=4, tokens=40, seeding_s=1.0,
        waiting_s=0.5, training_s=2.0, weights_s=0.25, step_s=4.0, t_seed_s=1.0, n_prem=2, grad_norm=0.1,
        loss=0.0,
    )  # fmt: skip


def round_(number: int, kind: str, lengths: dict[int, int], aborted: dict[int, int], trained: int) -> Round:
    return Round(
        t_s=4.0 * number, step=number, round=kind, launched=3 if kind == "short" else 2, counted=2, over=0,
        deferred=int(kind == "short"), queued=number, oldest_age=number - 1, edge=9, longest=12,
        ended=tuple(lengths.items()), aborted=tuple(aborted.items()), aborted_tokens=7,
        trained_tokens=trained, trained_responses=2,
    )  # fmt: skip


HISTORY: list[AnyRecord] = [
    step(1),
    round_(1, "short", {2: 2}, {6: 1}, trained=4),
    step(2),
    round_(2, "short", {4: 2, 10: 1}, {}, trained=8),
    step(3),
    round_(3, "long", {10: 2}, {}, trained=20),
    step(4),
    round_(4, "short", {2: 2, 3: 1}, {}, trained=4),
]


def test_bias_of_a_period_is_trained_over_launched_length() -> None:
    table = round_table("r-1", HISTORY)
    first, second = table.periods
    assert (first.first, first.last, first.short, first.long, first.whole) == (1, 3, 2, 1, True)
    assert first.trained_length == pytest.approx(32 / 6)
    # by Kaplan and Meier: 2 of 6 end at 2, 2 of 4 at 4, one is cut off at 6, the last ends at 10
    assert first.launched_length == pytest.approx(2 * 2 / 6 + 4 * 2 / 6 + 10 * 2 / 6)
    assert first.bias == table.bias == pytest.approx((32 / 6) / (32 / 6))
    assert not second.whole


def test_step_that_was_recorded_twice_counts_once_as_its_newest_record() -> None:
    older = round_(3, "long", {10: 2}, {}, trained=99)
    resumed = [*HISTORY[:4], step(3), older, step(2), *HISTORY[3:]]
    assert round_table("r-1", resumed) == round_table("r-1", HISTORY)


def test_bias_is_one_for_a_whole_period_that_trains_all_it_launched() -> None:
    table = round_table("r-1", HISTORY, all_trained=True)
    assert [one.bias for one in table.periods] == [1.0, None]
    assert table.bias == 1.0


def run_of(tmp_path: Path, records: list[AnyRecord]) -> list[str]:
    """The options that show a run with this history."""
    folder = tmp_path / "runs" / "demo-20260101-000000-abcd"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(dump(load("quickstart", ["rounds.mode=tail"])))
    writer = HistoryWriter(folder / "history.jsonl")
    for record in records:
        writer.write(record)
    writer.close()
    return ["rounds", folder.name, "--runs-dir", str(tmp_path / "runs")]


def test_rounds_command_shows_steps_and_periods_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = run_of(tmp_path, HISTORY)
    assert main(options) == 0
    shown = capsys.readouterr().out
    assert "bias over whole periods: 1.000" in shown
    assert "1-3" in shown
    assert "4-4 ..." in shown
    assert main([*options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["round"] for row in found["rounds"]] == ["short", "short", "long", "short"]


def test_rounds_command_names_the_setting_when_a_run_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(run_of(tmp_path, [step(1)])) == 3
    assert "rounds.mode is off" in capsys.readouterr().err
