"""A shared result is made once, also where several processes request it at once."""

import multiprocessing
import os
from pathlib import Path

import pytest

from tests.shared_results import once

CALLS = 8


class Base:
    """Stands for pytest's factory of temporary folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def getbasetemp(self) -> Path:
        return self.folder


def request(folder: Path, worker: int) -> None:
    """In a process of its own: note each call of `make` in a file."""
    os.environ["PYTEST_XDIST_WORKER"] = f"gw{worker}"
    own = folder / f"popen-gw{worker}"
    own.mkdir()

    def make(empty: Path) -> None:
        (empty / "result").write_text("made")
        with (folder / "calls").open("a") as calls:
            calls.write(f"{worker}\n")

    made = once(Base(own), "one", make)  # type: ignore[arg-type]
    assert (made / "result").read_text() == "made"


def test_result_is_made_once_by_processes_that_need_it_at_once(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=request, args=(tmp_path, worker)) for worker in range(CALLS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60.0)
    assert [process.exitcode for process in processes] == [0] * CALLS
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


def test_result_is_made_again_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    base = Base(tmp_path)

    def fail(empty: Path) -> None:
        (empty / "half").touch()
        raise ValueError("no result")

    with pytest.raises(ValueError, match="no result"):
        once(base, "one", fail)  # type: ignore[arg-type]
    made = once(base, "one", lambda empty: (empty / "whole").touch())  # type: ignore[arg-type]
    assert [path.name for path in made.iterdir()] == ["whole"]
