"""docs/chaos.md, followed word for word by a newcomer in a copy of the tree.

Each edit of the page is made, and its commands do what the page describes.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "chaos.md"
BLOCK = re.compile(r"<!-- (edit|file): (\S+) -->\n```(\w+)\n(.*?)```", re.DOTALL)
HELPERS = [f"tests/{name}.py" for name in ("conftest", "patient_loop", "postgres_server")]
COPIED = ["chaos", "sim", "tests/chaos", "pyproject.toml", *HELPERS]


@dataclass(frozen=True)
class Step:
    """An edit that the page asks for: a change of a file, or a new file."""

    file: str
    text: str
    new: bool

    def do(self, folder: Path) -> None:
        path = folder / self.file
        if self.new:
            assert not path.exists(), f"{self.file} is there already"
            path.write_text(self.text)
            return
        lines = self.text.splitlines(keepends=True)
        assert all(line[0] in " +-" for line in lines), self.text
        before = "\n" + "".join(line[1:] for line in lines if line[0] != "+")
        after = "\n" + "".join(line[1:] for line in lines if line[0] != "-")
        source = "\n" + path.read_text()
        assert source.count(before) == 1, f"{self.file}: {source.count(before)} times it has {before!r}"
        path.write_text(source.replace(before, after)[1:])


def steps() -> Iterator[Step]:
    for kind, file, language, text in BLOCK.findall(PAGE.read_text()):
        assert kind == "file" or language == "diff", f"docs/chaos.md: {file}"
        yield Step(file, text, new=kind == "file")


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with all edits of the page."""
    folder = tmp_path_factory.mktemp("newcomer")
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    (folder / "gleaner").mkdir()
    shutil.copy(ROOT / "gleaner" / "__init__.py", folder / "gleaner")
    for link in (ROOT / "gleaner").iterdir():
        if link.is_symlink():
            copy = folder / link.name
            (folder / "gleaner" / link.name).symlink_to(copy if copy.exists() else link.resolve())
    for step in steps():
        step.do(folder)
    return folder


def run(folder: Path, *words: str) -> str:
    """The output of a command of the page, in the copy."""
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_page_shows_a_whole_fault_and_whole_check() -> None:
    files = [step.file for step in steps()]
    for name in ("faults", "fault_sampler", "apply_sim", "invariants/catalogue", "mutations/training"):
        assert f"chaos/{name}.py" in files
    assert "sim/fault_injector.py" in files


@pytest.mark.timeout(300)
def test_newcomers_fault_and_check_pass_at_first_try(followed: Path) -> None:
    modules = [f"tests/chaos/test_chaos_{name}.py" for name in
             ("apply", "faults", "swarm", "invariants", "mutations")]  # fmt: skip
    chosen = "low_disk or every_kind or sense or window or story or every_check or cluster"
    out = run(followed, "pytest", "-rA", "-p", "no:cacheprovider", "-k", chosen, *modules)
    passed = [line.partition("::")[2] for line in out.splitlines() if line.startswith("PASSED ")]
    assert "test_low_disk_has_room_again_after_its_time" in passed
    assert "test_every_kind_has_a_json_form_with_its_name[low_disk]" in passed
    assert "test_plan_without_sense_is_reported" in passed
    assert "test_planted_bug_fits_source_and_compiles[a window below nothing]" in passed


@pytest.mark.timeout(300)
def test_newcomer_sees_the_fault_happen(followed: Path) -> None:
    replay = ("sim", "replay", "3", "--schedule", "low.toml", "--trace", "trace.txt")
    out = run(followed, "gleaner.rlctl", *replay)
    assert "low_disk 1" in out
    assert "every check held" in out
    assert "disk low" in (followed / "trace.txt").read_text()
    assert "  low_disk  " in run(followed, "gleaner.rlctl", "sim", "list")


@pytest.mark.timeout(300)
def test_newcomers_check_catches_its_planted_bug(followed: Path) -> None:
    out = run(followed, "gleaner.chaos.hunt", "a window below nothing", "--seeds", "3")
    row = next(line for line in out.splitlines() if line.startswith("| a window below nothing"))
    assert "| sane plans |" in row


def test_page_that_names_a_missing_line_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one = 1\ntwo = 2\n")
    Step("a.py", " one = 1\n+half = 1.5\n", new=False).do(tmp_path)
    assert (tmp_path / "a.py").read_text() == "one = 1\nhalf = 1.5\ntwo = 2\n"
    Step("a.py", "-two = 2\n+deux = 2\n", new=False).do(tmp_path)
    assert (tmp_path / "a.py").read_text() == "one = 1\nhalf = 1.5\ndeux = 2\n"
    with pytest.raises(AssertionError, match="0 times it has"):
        Step("a.py", " three = 3\n+four = 4\n", new=False).do(tmp_path)
