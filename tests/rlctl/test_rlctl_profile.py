"""`rlctl profile`: the critical path of a run's steps as table, JSON and picture."""

import errno
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from gleaner.actors.training import records
from gleaner.actors.training.history import HistoryWriter, Run, Step
from gleaner.actors.training.step_path import STAGES
from gleaner.configs.load import dump
from gleaner.configs.schema import Config
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import NOTHING, OK
from gleaner.rlctl.report import make
from gleaner.rlctl.report.critical_path import COLOURS, newest, scoring_time, stage_times


def path(step: int, decode_s: float, scoring_s: float | None = None) -> records.StepPath:
    stages = dict.fromkeys(STAGES, 0.25) | {"decode": decode_s, "evaluation": 0.0}
    return records.StepPath(
        t_s=4.0 * step, step=step, request="r", instance="spot-1", sends=1, stages=stages, scoring_s=scoring_s
    )


def step(number: int) -> Step:
    return Step(
        t_s=4.0 * number, step=number, reward=0.5, samples=4, tokens=40, seeding_s=1.0, waiting_s=0.5,
        training_s=2.0, weights_s=0.25, step_s=4.0, t_seed_s=1.0, n_prem=2, grad_norm=0.1, loss=0.0,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "quickstart-1"
    folder.mkdir()
    writer = HistoryWriter(folder / "history.jsonl")
    writer.write(Run(t_s=0, run_id="quickstart-1", seed=0, steps=2, config={}))
    for number, decode_s in ((1, 1.0), (2, 3.0), (2, 2.0)):  # step 2 was measured again
        writer.write(step(number))
        writer.write(path(number, decode_s))
    writer.close()
    (folder / "config.toml").write_text(dump(Config()))
    return folder


def test_each_stage_has_its_mean_and_its_share() -> None:
    times = {one.stage: one for one in stage_times([path(1, 1.0), path(2, 2.0)])}
    assert list(times) == list(STAGES)
    assert (times["decode"].mean_s, times["decode"].most_s) == (1.5, 2.0)
    assert sum(one.share for one in times.values()) == pytest.approx(1.0)
    assert stage_times([]) == []
    assert COLOURS.keys() == STAGES.keys()


def test_scoring_beyond_the_critical_path_is_hidden() -> None:
    found = scoring_time([path(1, 1.0, scoring_s=1.25), path(2, 1.0), path(3, 1.0, scoring_s=0.75)])
    assert found is not None
    assert (found.scoring_s, found.hidden_s, found.exposed_s) == (1.0, 0.75, 0.25)
    assert scoring_time([path(1, 1.0)]) is None, "older histories do not have it"


def test_profile_and_report_show_what_of_scoring_is_hidden(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = HistoryWriter(run / "history.jsonl")
    writer.write(path(2, 2.0, scoring_s=2.5))
    writer.close()
    assert main(["profile", str(run)]) == OK
    shown = " ".join(capsys.readouterr().out.split())
    assert "2.250 s (90%) beside decoding or training, 0.250 s exposed" in shown
    report = make(run)
    assert report.scoring is not None
    assert report.scoring.hidden_s == 2.25
    page = (run / "report.html").read_text()
    assert "Scoring, hidden" in page
    assert "2.250 s" in page


def test_step_measured_twice_counts_once() -> None:
    assert [one.stages["decode"] for one in newest([path(1, 1.0), path(2, 3.0), path(2, 2.0)])] == [1.0, 2.0]


def test_profile_names_the_longest_stage(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(run)]) == OK
    shown = capsys.readouterr().out
    assert "2 steps, 4.50 s each; the longest stage is decode, 1.50 s (33%)" in shown
    assert all(stage.replace("_", " ") in shown for stage in STAGES)


def test_profile_gives_the_same_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(run), "--json"]) == OK
    found = json.loads(capsys.readouterr().out)
    assert [one["step"] for one in found["steps"]] == [1, 2]
    assert {one["stage"]: one["mean_s"] for one in found["stages"]}["decode"] == 1.5
    assert found["scoring"] is None, "older histories do not have it"


def test_profile_draws_a_self_contained_picture(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "path.svg"
    assert main(["profile", str(run), "--picture", str(picture)]) == OK
    root = ET.fromstring(picture.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = " ".join(one.text or "" for one in root.iter("{http://www.w3.org/2000/svg}text"))
    assert "hand out" in words
    assert "1.500 s  33%" in words
    assert "evaluation" not in words, "a stage that no step has gets no row"


def test_profile_reports_where_it_cannot_write(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(run), "--picture", "/nowhere/path.svg"]) == 1
    assert "/nowhere/path.svg: cannot be written" in capsys.readouterr().err


def test_failed_picture_write_keeps_the_existing_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = tmp_path / "path.svg"
    picture.write_text("mine")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    assert main(["profile", str(run), "--picture", str(picture)]) == 1
    assert picture.read_text() == "mine"


def test_profile_reports_a_run_without_measured_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = HistoryWriter(tmp_path / "history.jsonl")
    writer.write(step(1))  # as older programs wrote them
    writer.close()
    (tmp_path / "config.toml").write_text(dump(Config()))
    assert main(["profile", str(tmp_path)]) == NOTHING
    assert "no step whose path was measured" in capsys.readouterr().err


def test_report_shows_the_path(run: Path) -> None:
    assert [one.stage for one in make(run).critical_path] == list(STAGES)
    page = (run / "report.html").read_text()
    assert "What the end of a step waited for" in page
