"""Fixtures of the tests that start whole runs: one model, and runs that clean up."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from real_runs import MakeRun, RealRun, rlctl

CONFIG = Path(__file__).with_name("small.toml")


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was never trained: its answers are long, and their reward does not matter here."""
    directory = tmp_path_factory.mktemp("model") / "random"
    made = rlctl("model", "new", str(directory), "--config", str(CONFIG), "--json")
    assert made.returncode == 0, made.stderr
    return directory


@pytest.fixture
def make_run(tmp_path: Path, model_dir: Path) -> Iterator[MakeRun]:
    """Makes a run with settings over `small.toml`; each run is ended whatever happened."""
    made: list[RealRun] = []

    def make(*settings: str) -> RealRun:
        root = tmp_path / str(len(made))
        root.mkdir()
        run = RealRun(root, CONFIG, [f"model.path={model_dir}", *settings])
        made.append(run)
        return run

    yield make
    for run in made:
        run.close()
