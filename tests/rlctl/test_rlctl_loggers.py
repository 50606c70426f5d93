"""Figures of a run in TensorBoard and Weights & Biases, without a network."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gleaner.actors.training.history import HistoryFollower, HistoryWriter
from gleaner.actors.training.records import AnyRecord, End, Eval, Node, Run, Sample, Step
from gleaner.configs.load import dump, load
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.loggers.feed import Feed, feed
from gleaner.rlctl.loggers.figures import Figures, figures_of
from gleaner.rlctl.loggers.sink import SinkFailed


def step(number: int, t_s: float) -> Step:
    return Step(
        t_s=t_s,
        step=number,
        reward=0.25 * number,
        samples=8,
        tokens=100,
        seeding_s=0.1,
        waiting_s=0.2,
        training_s=0.3,
        weights_s=0.05,
        step_s=0.7,
        t_seed_s=0.5,
        n_prem=2,
        grad_norm=None,
        loss=-0.01,
    )


def look(t_s: float) -> Sample:
    return Sample(
        t_s=t_s,
        step=1,
        reserved=1,
        preemptible=2,
        serving=2,
        executing=5,
        pending=1,
        tokens_collected=90,
        migrations=3,
        tokens_per_s=45.0,
    )


RECORDS: list[AnyRecord] = [
    Run(t_s=0.0, run_id="a", seed=0, steps=2, config={}),
    Eval(t_s=0.5, step=0, when="first", reward=0.1, problems=8),
    Node(t_s=1.0, node="spot-1", role="preemptible", event="joined"),
    look(1.0),
    step(1, 2.0),
    look(2.0),
    step(2, 3.0),
    Eval(t_s=3.5, step=2, when="last", reward=0.6, problems=8),
    End(
        t_s=3.5,
        tokens_collected=200,
        tokens_lost=0,
        tokens_generated_twice=0,
        requests_migrated=3,
        ok=True,
    ),
]


class Kept:
    """A sink that keeps its figures, or fails at the `fails_at`-th."""

    where = "here"

    def __init__(self, fails_at: int = -1) -> None:
        self.got: list[Figures] = []
        self.closed = False
        self._fails_at = fails_at

    def write(self, figures: Figures) -> None:
        if len(self.got) == self._fails_at:
            raise SinkFailed("the service is gone")
        self.got.append(figures)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A finished run."""
    folder = tmp_path / "runs/demo-20260101-000000-abcd"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(dump(load("quickstart", ["fleet.trace="])))
    writer = HistoryWriter(folder / "history.jsonl")
    for record in RECORDS:
        writer.write(record)
    writer.close()
    return folder


def test_held_out_rewards_have_one_figure_per_task() -> None:
    tasks = {"sums": 0.5, "words": None}
    found = figures_of(Eval(t_s=3.5, step=2, when="last", reward=0.6, problems=8, tasks=tasks))
    assert found is not None
    assert found.values == {"eval/problems": 8.0, "eval/reward": 0.6, "eval/reward/sums": 0.5}


def test_steps_are_logged_by_step_fleet_by_seconds() -> None:
    trained, looked = figures_of(RECORDS[4]), figures_of(RECORDS[3])
    assert trained is not None
    assert looked is not None
    assert (trained.over, trained.at, trained.values["train/reward"]) == ("step", 1, 0.25)
    assert "train/grad_norm" not in trained.values  # it was not finite: no number, no point
    assert (looked.over, looked.at, looked.values["fleet/tokens_per_s"]) == ("seconds", 1, 45.0)
    assert figures_of(RECORDS[2]) is None


def test_failing_logger_is_reported_once_and_others_continue() -> None:
    broken, whole, reports = Kept(fails_at=2), Kept(), []
    assert feed(RECORDS, [broken, whole], reports.append) == 7
    assert reports == ["the service is gone (it gets no more figures)"]
    assert (len(broken.got), len(whole.got)) == (2, 7)
    assert whole.closed


def test_feed_gives_new_records_and_ends_with_run(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    writer = HistoryWriter(history)
    for record in RECORDS[:5]:
        writer.write(record)
    follower = HistoryFollower(history)
    follower.poll()
    kept = Kept()
    loggers = Feed(follower, lambda: [kept], tell=lambda line: None)
    loggers.start()
    for record in RECORDS[5:]:
        writer.write(record)
    writer.close()
    loggers.stop(within_s=60.0)
    assert [figures.at for figures in kept.got if figures.over == "step"] == [2, 2]
    assert kept.closed


def test_logger_that_cannot_open_does_not_harm_run(tmp_path: Path) -> None:
    def refuse() -> list[Kept]:
        raise SinkFailed("no such project")

    reports: list[str] = []
    loggers = Feed(HistoryFollower(tmp_path / "history.jsonl"), refuse, tell=reports.append)  # type: ignore[arg-type]
    loggers.start()
    loggers.stop(within_s=60.0)
    assert reports == ["no such project (the run goes on without)"]


def test_tensorboard_reads_back_the_figures_of_the_run(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["log", "--tensorboard", "--runs-dir", str(run_dir.parent)]) == 0
    assert "tensorboard --logdir" in capsys.readouterr().out
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    assert [(point.step, point.value) for point in events.Scalars("train/reward")] == [(1, 0.25), (2, 0.5)]
    held_out = [(point.step, round(point.value, 6)) for point in events.Scalars("eval/reward")]
    assert held_out == [(0, 0.1), (2, 0.6)]


def test_wandb_keeps_an_offline_run_of_same_id(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("HOME", str(run_dir))
    arguments = ["log", "--wandb", "demo", "--offline", "--runs-dir", str(run_dir.parent)]
    assert main(arguments) == 0
    assert "wandb sync" in capsys.readouterr().out
    kept = sorted((run_dir / "wandb").glob("offline-run-*/run-*.wandb"))
    assert [run_dir.name in file.name for file in kept] == [True]
    assert b"train/reward" in kept[0].read_bytes()


@pytest.mark.parametrize(
    ("arguments", "problem"), [([], "name a logger"), (["--wandb", "a project"], "--wandb 'a project'")]
)
def test_wrong_order_is_explained(
    run_dir: Path, arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", *arguments, "--runs-dir", str(run_dir.parent)]) == 2
    assert problem in capsys.readouterr().err


def test_logger_without_its_package_is_refused_before_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from gleaner.rlctl import preflight

    none: Callable[[str], None] = lambda name: None  # noqa: E731
    monkeypatch.setattr(preflight, "find_spec", none)
    config = load("quickstart", ["fleet.trace=", "loggers.tensorboard=true", "loggers.wandb=demo"])
    found = [line for line in preflight.problems(config, tmp_path) if "loggers" in line]
    assert [line.split(":")[0] for line in found] == ["loggers.tensorboard", "loggers.wandb"]
    assert json.dumps(found).count("pip install") == 2
