"""Attempts to cheat the grader: all fail, while many pass a naive grader."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verifiers.port import VerifierSpec
from gleaner.actors.reward.verifiers.programs import CodeVerifier
from tests.actors.reward.verifiers import cheats
from tests.actors.reward.verifiers.verifier_modes import MODES, needs

TEXTS = ["hello world", "grader"]
CALLS = Entry(question="?", tests=tuple({"call": "f", "args": [one], "expected": one[::-1]} for one in TEXTS))
STDIN = Entry(question="?", tests=tuple({"input": f"{one}\n", "output": one[::-1]} for one in TEXTS))
HONEST = {"call": "def f(text):\n    return text[::-1]", "stdin": "print(input()[::-1])"}

# A common grader: the program and the expected output share a process, whose end or output is the verdict.
_NAIVE = """
import json, sys
source, tests = open("source.py").read(), json.load(open("tests.json"))
module = {}
exec(compile(source, "solution", "exec"), module)
assert all(
    json.dumps(module["f"](*test["args"])) == json.dumps(test["expected"])
    or module["f"](*test["args"]) == test["expected"]
    for test in tests
)
print("PASSED")
"""
GAINS = {
    "equals everything", "exits at its import", "exits hard at its import", "exits in a call",
    "exits hard in a call", "prints that it passed", "looks at objects and frames", "looks at files",
    "replaces json", "replaces builtins", "writes at its end",
}  # fmt: skip
"""Attempts that the naive grader accepts."""


def naive(source: str, tests: Entry, folder: Path) -> bool:
    (folder / "source.py").write_text(source)
    (folder / "tests.json").write_text(json.dumps(tests.tests))
    done = subprocess.run(
        [sys.executable, "-c", _NAIVE], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode == 0 or "PASSED" in done.stdout


@pytest.fixture(scope="module", params=MODES)
def verifier(request: pytest.FixtureRequest) -> Iterator[CodeVerifier]:
    needs(request.param)
    verifier = CodeVerifier(VerifierSpec(name="code", task="reverse", isolation=request.param))
    verifier.clock = lambda: 0.0  # long enough to start all programs on a busy machine
    yield verifier
    verifier.close()


def fenced(source: str) -> str:
    return f"```python\n{source}\n```"


def test_honest_program_scores_1(verifier: CodeVerifier) -> None:
    pairs = [(CALLS, fenced(HONEST["call"])), (STDIN, fenced(HONEST["stdin"]))]
    assert [one.score for one in verifier.score_all(pairs)] == [1.0, 1.0]


@pytest.mark.parametrize("name", cheats.CALLS)
def test_cheating_function_scores_0(verifier: CodeVerifier, name: str) -> None:
    (found,) = verifier.score_all([(CALLS, fenced(cheats.CALLS[name]))])
    assert (found.score, found.parts.get("passed", 0.0)) == (0.0, 0.0), found
    assert found.status in ("ok", "crashed"), found


@pytest.mark.parametrize("name", cheats.STDIN)
def test_cheating_program_scores_0(verifier: CodeVerifier, name: str) -> None:
    (found,) = verifier.score_all([(STDIN, fenced(cheats.STDIN[name]))])
    assert (found.score, found.parts.get("passed", 0.0)) == (0.0, 0.0), found
    assert found.status in ("ok", "crashed"), found


@pytest.mark.parametrize("name", sorted(GAINS))
def test_naive_grader_accepts_the_same_cheats(name: str, tmp_path: Path) -> None:
    """The negative control."""
    assert naive(cheats.CALLS[name], CALLS, tmp_path)


def test_naive_grader_separates_right_from_wrong(tmp_path: Path) -> None:
    assert naive(HONEST["call"], CALLS, tmp_path)
    assert not naive("def f(text):\n    return '?'", CALLS, tmp_path)


def test_only_the_last_program_counts(verifier: CodeVerifier) -> None:
    right, wrong = fenced(HONEST["call"]), fenced("def f(text):\n    return text")
    judged = verifier.score_all([(CALLS, f"{right}\n{wrong}"), (CALLS, f"{wrong}\n{right}")])
    assert [one.score for one in judged] == [0.0, 1.0]


def test_one_program_leaves_nothing_for_the_next(verifier: CodeVerifier) -> None:
    leaves = "import builtins, json\nbuiltins.input = json.dumps = lambda *a: 'left'\nopen('left', 'w')\n"
    judged = verifier.score_all([
        (CALLS, fenced(leaves + HONEST["call"])),
        (CALLS, fenced(HONEST["call"])),
        (STDIN, fenced("import os\nassert os.listdir('.') == ['solution.py']\n" + HONEST["stdin"])),
    ])  # fmt: skip
    assert [one.score for one in judged] == [1.0, 1.0, 1.0]


def test_expected_output_never_enters_the_sandbox(verifier: CodeVerifier) -> None:
    sent: list[bytes] = []
    run = verifier.sandbox.run

    def watched(work: object) -> object:
        sent.append(work.payload)  # type: ignore[attr-defined]
        return run(work)  # type: ignore[arg-type]

    verifier.sandbox.run = watched  # type: ignore[method-assign,assignment]
    verifier.score_all([(CALLS, fenced(HONEST["call"])), (STDIN, fenced(HONEST["stdin"]))])
    verifier.sandbox.run = run  # type: ignore[method-assign]
    assert len(sent) == 2
    assert all(one[::-1].encode() not in payload for one in TEXTS for payload in sent)
