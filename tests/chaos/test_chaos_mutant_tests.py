"""The tests of a mutant's package: what counts as noticed, and that the mutant is there when they run."""

import subprocess
import sys
from pathlib import Path

import pytest

from gleaner.chaos import mutant_tests
from gleaner.chaos.mutant_checkout import changed_checkout
from gleaner.chaos.mutant_tests import PLANTED, SuiteEnd, judged, nearest, noticed_by_tests, run_tests
from gleaner.chaos.mutants import Mutant, all_mutants, changed_by

ROOT = Path(__file__).parents[2]
TESTS = "tests/actors/cluster/test_actors_cluster_fleet.py"
"""Of a policy: they take milliseconds."""


@pytest.fixture(scope="module")
def mutant() -> Mutant:
    """The first changed number of that policy."""
    return next(
        it
        for it in all_mutants(ROOT)
        if it.module == "gleaner.actors.cluster.fleet" and it.rule in ("off by one", "sign")
    )


@pytest.mark.long
def test_tests_notice_a_bad_mutant_and_pass_without_one(mutant: Mutant) -> None:
    assert run_tests("", [TESTS]).passed
    end = run_tests(mutant.name, [TESTS])
    assert end.failed.startswith(TESTS)


def test_mutant_that_does_not_fit_the_source_is_an_error_not_a_notice() -> None:
    with pytest.raises(RuntimeError, match="not planted"):
        run_tests("gleaner.actors.cluster.fleet:1:0+1:bound", [TESTS])


def test_copy_of_the_checkout_alone_has_the_mutant(mutant: Mutant) -> None:
    file = Path("actors", "cluster", "fleet.py")
    plain = (ROOT / file).read_text(encoding="utf-8")
    with changed_checkout(ROOT, mutant.name) as copy:
        changed = (copy / "gleaner" / file).read_text(encoding="utf-8")
        assert changed == changed_by(mutant, plain) != plain
        assert (copy / "gleaner" / file).samefile(copy / file)
        assert copy.parent.stat().st_mode & 0o055 == 0o055, "other users read it"
    assert not copy.exists()
    assert (ROOT / file).read_text(encoding="utf-8") == plain


@pytest.mark.long
def test_planted_source_alone_changes_nothing_when_modules_are_imported() -> None:
    """A mutant whose module could not be imported that way would count as noticed, whatever it changes."""
    script = (
        "import importlib, sys\n"
        "from gleaner.chaos.mutate import Edit, plant, source_of\n"
        "names = sys.argv[1:]\n"
        "plant([Edit(name, source, source) for name in names if (source := source_of(name)[0])])\n"
        "print(sum(importlib.import_module(name).__name__ == name for name in names))\n"
    )
    names = sorted({it.module for it in all_mutants(ROOT)})
    done = subprocess.run(
        [sys.executable, "-c", script, *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [str(len(names))], done.stderr


SUMMARY = "=== short test summary info ===\n"
PASSING = f"1 passed\n{PLANTED}gleaner.x:1\n"


@pytest.mark.parametrize(
    ("code", "hung", "text", "expected"),
    [
        (0, "", PASSING, SuiteEnd()),
        (1, "", f"{SUMMARY}FAILED tests/a.py::b[y z] - 1 == 2\n", SuiteEnd(failed="tests/a.py::b[y z]")),
        (2, "", f"{SUMMARY}ERROR tests/a.py - ImportError: no b\n", SuiteEnd(failed="tests/a.py")),
        (1, "", f"ERROR of an actor\n{SUMMARY}FAILED tests/a.py::b - x\n", SuiteEnd(failed="tests/a.py::b")),
        (4, "", "ImportError while loading conftest 'x'.\n", SuiteEnd(why="cannot be imported")),
        (-9, "blocked for 200 s", "", SuiteEnd(why="no end (blocked for 200 s)")),
        (-11, "", "", SuiteEnd(why="pytest ends with -11")),
    ],
)  # fmt: skip
def test_end_of_tests_is_read_from_exit_code_and_output(
    code: int, hung: str, text: str, expected: SuiteEnd
) -> None:
    assert judged("gleaner.x:1", code, hung, text) == expected


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "1 passed\n"), (0, f"1 passed\n{PLANTED}another\n"), (4, "unknown option"), (5, "no tests ran")],
)
def test_run_without_the_plugin_or_without_tests_proves_nothing(code: int, text: str) -> None:
    with pytest.raises(RuntimeError):
        judged("gleaner.x:1", code, "", text)


def test_tests_of_the_module_run_first() -> None:
    def near(module: str) -> list[str]:
        return nearest(Mutant(f"gleaner.{module}", 1, 0, "bound", "a < b", "(a <= b)"))

    assert near("actors.cluster.fleet") == [TESTS]
    assert near("actors.rollout.dispatch.migration") == ["tests/actors/rollout/dispatch"]
    assert near("supervisor.no_such_module") == []


class Runs:
    """Answers in the place of pytest: by mutant ("" for none) and first argument."""

    def __init__(self, answers: dict[tuple[str, str], list[SuiteEnd]]) -> None:
        self.answers = answers

    def __call__(self, name: str, arguments: list[str]) -> SuiteEnd:
        answers = self.answers["mutant" if name else "", arguments[-1]]
        return answers.pop(0)


FOLDER = "tests/actors/cluster"
BAD, GOOD = SuiteEnd(failed="tests/a.py::test_b"), SuiteEnd()

REST = f"--ignore={TESTS}"


def test_test_notices_a_mutant_when_it_fails_again_and_passes_without_it(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {
        ("mutant", TESTS): [GOOD],
        ("mutant", REST): [BAD],
        ("mutant", BAD.failed): [BAD],
        ("", BAD.failed): [GOOD],
    }
    monkeypatch.setattr(mutant_tests, "run_tests", Runs(runs))
    assert noticed_by_tests(mutant) == BAD.failed


@pytest.mark.parametrize(("again", "without"), [([GOOD], []), ([BAD], [BAD])])
def test_unsteady_test_is_left_out_when_it_proves_nothing(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, again: list[SuiteEnd], without: list[SuiteEnd]
) -> None:
    runs = {
        ("mutant", TESTS): [BAD],
        ("mutant", BAD.failed): list(again),
        ("", BAD.failed): list(without),
        ("mutant", f"--deselect={BAD.failed}"): [GOOD],
        ("mutant", REST): [GOOD],
    }
    monkeypatch.setattr(mutant_tests, "run_tests", Runs(runs))
    assert noticed_by_tests(mutant) == ""


def test_tests_without_an_end_need_a_clean_run_without_the_mutant(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = SuiteEnd(why="no end (blocked for 200 s)")
    runs = {("mutant", TESTS): [hung, hung], ("", FOLDER): [hung, GOOD]}
    monkeypatch.setattr(mutant_tests, "run_tests", Runs(runs))
    mutant_tests._require_clean.cache_clear()
    with pytest.raises(RuntimeError, match="fails without a mutant"):
        noticed_by_tests(mutant)
    assert noticed_by_tests(mutant) == f"{FOLDER}: {hung.why}"
    mutant_tests._require_clean.cache_clear()
