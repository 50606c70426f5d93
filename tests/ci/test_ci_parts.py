"""`make test`: a failed part stops no other, and the last lines name it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ci.missed import MISSED

ROOT = Path(__file__).parents[2]
CLIENTS = "tests/engines/clients.txt"
PROGRAMS = ("python", "ruff", "mypy", "lint-imports", "rlctl")
FAKE = """\
#!/bin/sh
echo "$(basename "$0") $*" >> {log}
case "$(basename "$0") $*" in {failing}) exit 1;; esac
exit 0
"""
# A Python whose environments hold it under each name that a recipe calls. As Python's own, it ends with an
# error where another makes the same environment.
FAKE_PYTHON = """\
#!/bin/sh
echo "$*" >> {log}
case "$*" in
"-m venv "*)
    sleep 0.3
    mkdir -p "$3" && mkdir "$3/bin" || exit 1
    for program in uv {programs}; do cp {interpreter} "$3/bin/$program"; done;;
-c*) echo .;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile, in which all environments exist already."""
    bare_checkout(tmp_path)
    for ready in (".tools/.ready", ".venv/.ready", ".engines/sglang/.ready", ".bench/clients/.ready"):
        (tmp_path / ready).parent.mkdir(parents=True)
        (tmp_path / ready).touch()
    return tmp_path


def bare_checkout(folder: Path) -> None:
    """Copy the Makefile and the files that its targets for `make test` read."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "configs" / "engines", folder / "configs" / "engines")
    (folder / CLIENTS).parent.mkdir(parents=True)
    shutil.copy(ROOT / CLIENTS, folder / CLIENTS)


def make_test(checkout: Path, failing: str) -> tuple[int, list[str], str]:
    """Run `make test` with programs that only record their arguments.

    One fails where its words match. Returns the exit status, the last lines of the output, and the calls.
    """
    log = checkout / "called"
    log.touch()
    (checkout / ".venv" / "bin").mkdir()
    for program in PROGRAMS:
        fake = checkout / ".venv" / "bin" / program
        fake.write_text(FAKE.format(log=log, failing=failing))
        fake.chmod(0o755)
    code, last_lines = run_make_test(checkout)
    return code, last_lines, log.read_text()


def run_make_test(checkout: Path, *settings: str) -> tuple[int, list[str]]:
    """Run `make test`, and return its exit status and the last lines of its output: one for each part."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "test", *settings]
    done = subprocess.run(
        command, cwd=checkout, env=bare, capture_output=True, text=True, timeout=200, check=False
    )
    return done.returncode, done.stdout.splitlines()[-7:]


def test_make_test_runs_every_part_when_one_fails(checkout: Path) -> None:
    code, parts, called = make_test(checkout, '*" -n 3 "*|"ruff check"*')
    assert code != 0
    assert parts == [
        "lint: FAILED",
        "engine-sglang: passed",
        "clients: passed",
        "test-together: FAILED",
        "test-alone: passed",
        "test-engines: passed",
        "campaign: passed",
    ]
    for words in ("mypy", "-m alone and not", "-m engines and not", "rlctl sim run"):
        assert words in called, f"{words}: it did not run"


def test_make_test_passes_when_every_part_passes(checkout: Path) -> None:
    code, parts, called = make_test(checkout, "nothing")
    assert (code, {line.rpartition(": ")[2] for line in parts}) == (0, {"passed"})
    together = called.index(" -n 3 ")
    assert together < called.index("-m alone and not")
    assert together < called.index("-m engines and not")


def test_make_test_makes_each_environment_once_in_a_clean_checkout(tmp_path: Path) -> None:
    folder = tmp_path / "checkout"
    folder.mkdir()
    bare_checkout(folder)
    log, interpreter = tmp_path / "called", tmp_path / "python"
    interpreter.write_text(FAKE_PYTHON.format(log=log, interpreter=interpreter, programs=" ".join(PROGRAMS)))
    interpreter.chmod(0o755)
    code, parts = run_make_test(folder, f"PYTHON={interpreter}")
    assert (code, {line.rpartition(": ")[2] for line in parts}) == (0, {"passed"}), parts
    calls = log.read_text().splitlines()
    made = [call.removeprefix("-m venv ") for call in calls if call.startswith("-m venv ")]
    assert sorted(made) == [".bench/clients", ".engines/sglang", ".tools", ".venv"]


def test_a_test_that_runs_alone_or_needs_engines_is_in_a_file_that_its_part_imports(
    request: pytest.FixtureRequest,
) -> None:
    """`test-alone` imports the files that have its mark, `test-engines` those of tests/engines."""
    assert request.config.stash[MISSED] == []
