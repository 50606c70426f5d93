"""Model folders that tests share, and processes that end with their test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_runs import Processes
from small_model import MakeModel, make_folder


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """A function that makes each model folder once."""
    folder = tmp_path_factory.mktemp("models")

    def make(name: str, seed: int) -> Path:
        directory = folder / name
        return directory if directory.exists() else make_folder(directory, seed)

    return make


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """An empty set of processes."""
    found = Processes(tmp_path)
    yield found
    found.close()
