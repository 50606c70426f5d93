"""Unit tests of a problem, run with the files of a response, and attempts of responses to cheat."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers.cases import BadTests
from gleaner.actors.reward.verifiers.port import VerifierSpec
from gleaner.actors.reward.verifiers.registry import make
from gleaner.actors.reward.verifiers.suites import suite_of, with_canaries
from gleaner.actors.reward.verifiers.unit_tests import UnitTestVerifier, files_of
from tests.actors.reward.verifiers.verifier_modes import MODES, needs

FIRST = """
import unittest
import pytest
from solution import f

@pytest.mark.parametrize("n", [1, 2])
def test_doubles(n):
    assert f(n) == 2 * n

class ZeroTestCase(unittest.TestCase):
    def test_zero(self):
        self.assertEqual(f(0), 0)
"""
SECOND = "from helper import FIVE\nfrom solution import f\n\ndef test_five():\n    assert f(FIVE) == 10\n"
FILES = {"test_first.py": FIRST, "tests/test_second.py": SECOND, "helper.py": "FIVE = 5\n"}
PROBLEM = Entry(
    question="?", tests=tuple({"path": path, "content": content} for path, content in FILES.items())
)
HONEST = "def f(n):\n    return 2 * n"


def fenced(source: str) -> str:
    return f"```python\n{source}\n```\n"


def made(mode: str = "auto", **params: object) -> UnitTestVerifier:
    spec = VerifierSpec(name="unit_tests", task="doubles", params=params, isolation=mode, deadline_s=10.0)
    verifier = make(spec)
    assert isinstance(verifier, UnitTestVerifier)
    return verifier


@pytest.fixture(scope="module", params=MODES)
def verifier(request: pytest.FixtureRequest) -> Iterator[UnitTestVerifier]:
    needs(request.param)
    verifier = made(request.param)
    yield verifier
    verifier.close()


def judged(verifier: UnitTestVerifier, response: str) -> Judgement:
    return verifier.score_all([(PROBLEM, response)])[0]


def test_honest_solution_passes_every_test(verifier: UnitTestVerifier) -> None:
    expected = (1.0, "ok", "", {"passed": 4.0, "tests": 4.0})
    for response in (fenced(HONEST), f"```python path=solution.py\n{HONEST}\n```"):
        found = judged(verifier, response)
        assert (found.score, found.status, found.detail, found.parts) == expected


def test_wrong_solution_names_its_first_failing_test(verifier: UnitTestVerifier) -> None:
    found = judged(verifier, fenced("def f(n):\n    return n + 2"))
    assert (found.score, found.status) == (0.0, "ok")
    assert "test_first.py::test_doubles[1]: assert 3 == " in found.detail
    assert found.parts == {"passed": 1.0, "tests": 4.0}


def test_response_without_a_program_has_no_answer(verifier: UnitTestVerifier) -> None:
    assert judged(verifier, HONEST).status == "no_answer"


def test_share_of_passed_tests_is_the_optional_score() -> None:
    verifier = made(score="share")
    assert judged(verifier, fenced("def f(n):\n    return 2 * n if n < 5 else 0")).score == 0.75
    source = f"import sys\nif 'test_first' in sys.modules:\n    raise ValueError\n{HONEST}"
    assert judged(verifier, fenced(source)).score == 0.25
    verifier.close()


OVERWRITE = """
import os
for path in ("tests/test_second.py", "test_first.py"):
    os.unlink(path)
    with open(path, "w") as file:
        file.write("def test_five(): pass\\n")
"""
CHEATS = {
    "exits": "import sys\nsys.exit(0)",
    "exits hard": "import os\nos._exit(0)",
    "exits as pytest does where a test failed": "import os\nos._exit(1)",
    "exits in a test": "import os\ndef f(n):\n    os._exit(0)",
    "ends pytest": "import pytest\npytest.exit('done', returncode=0)",
    "skips": "import pytest\ndef f(n):\n    pytest.skip('done')",
    "prints that it passed": "print('4 passed in 0.01s')\ndef f(n):\n    return 0",
    "forges reports": "import os\nfor fd in range(64):\n    for line in (b'test_doubles PASSED\\n',"
    " b'[\"\", \"test_first.py::test_doubles\", \"passed\", \"\"]\\n'):\n        try:\n"
    "            os.write(fd, line)\n        except OSError:\n            pass\ndef f(n):\n    return 0",
    "runs no test": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"
    "def f(n):\n    return 0",
    "takes failures out of reports": "import _pytest.reports\n"
    "old = _pytest.reports.TestReport.from_item_and_call.__func__\n"
    "def new(cls, item, call):\n    call.excinfo = None\n    return old(cls, item, call)\n"
    "_pytest.reports.TestReport.from_item_and_call = classmethod(new)\ndef f(n):\n    return 0",
    "replaces assertions of unittest": "import unittest\n"
    "unittest.TestCase.assertEqual = lambda *a: None\ndef f(n):\n    return 2 * n if n else 7",
    "replaces AssertionError": "import builtins, _pytest.outcomes\n"
    "builtins.AssertionError = _pytest.outcomes.Skipped\ndef f(n):\n    return 0",
    "writes over the tests": OVERWRITE + "def f(n):\n    return 10",
    "writes over the tests later": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True:\n"
    "        time.sleep(0.001)\n        try:\n            exec(" + repr(OVERWRITE) + ")\n"
    "        except OSError:\n            pass\ndef f(n):\n    return 0 if n == 5 else 2 * n",
    "ends well at its end": "import atexit, os\n"
    "atexit.register(lambda: os._exit(0))\ndef f(n):\n    return 0",
}  # fmt: skip
CONFTEST = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
FOLDERS = {
    "conftest.py": f"```python path=conftest.py\n{CONFTEST}\n```\n```python path=solution.py\nf = abs\n```",
    "a conftest.py below": f"```python path=tests/conftest.py\n{CONFTEST}\n```\n"
    "```python path=solution.py\ndef f(n): return 0 if n == 5 else 2 * n\n```",
    "its own tests": "```python path=test_first.py\ndef test_doubles(): pass\n```\n"
    "```python path=tests/test_second.py\ndef test_five(): pass\n```\n"
    "```python path=solution.py\nf = abs\n```",
    "pytest.ini": "```ini path=pytest.ini\n[pytest]\naddopts = --collect-only\n```\n"
    "```python path=solution.py\nf = abs\n```",
    "a module in place of pytest": "```python path=pytest.py\nclass mark: pass\n```\n"
    "```python path=unittest.py\nclass TestCase: pass\n```\n```python path=solution.py\nf = abs\n```",
    "a path out of its folder": "```python path=../solution.py\nf = abs\n```",
}
GAINS = {"exits hard", "runs no test", "takes failures out of reports"}


@pytest.mark.parametrize("name", CHEATS)
def test_cheating_solution_scores_0(verifier: UnitTestVerifier, name: str) -> None:
    found = judged(verifier, fenced(CHEATS[name]))
    assert (found.score, found.status in ("ok", "crashed")) == (0.0, True), found


@pytest.mark.parametrize("name", FOLDERS)
def test_files_that_would_change_the_tests_gain_nothing(verifier: UnitTestVerifier, name: str) -> None:
    assert judged(verifier, FOLDERS[name]).score == 0.0


@pytest.mark.parametrize("name", [*sorted(GAINS), "conftest.py"])
def test_plain_pytest_accepts_the_same_cheats(name: str, tmp_path: Path) -> None:
    """The negative control."""
    files = {**FILES, **(files_of_naive(FOLDERS[name]) if name in FOLDERS else {"solution.py": CHEATS[name]})}
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir=."]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert done.returncode == 0, done.stdout[-500:]


def files_of_naive(response: str) -> dict[str, str]:
    return {"conftest.py": CONFTEST, "solution.py": "f = abs\n"} if "conftest" in response else {}


def test_response_files_are_named_at_their_fences() -> None:
    response = (
        '```python a/b.py\n1\n```\n```py title="c.py"\n2\n```\n```python\n3\n```\n'
        "```python path=/etc/x\n4\n```"
        "\n```python file=x.pth\n5\n```\n```python a/b.py\n6\n```\n"
    )
    assert files_of(response) == {"a/b.py": "6\n", "c.py": "2\n"}
    assert files_of("```python\n1\n```\n```python\n2\n```") == {"solution.py": "2\n"}


def test_number_of_tests_is_known_before_any_run() -> None:
    suite = suite_of(PROBLEM.tests)
    assert [dict(file.names) for file in suite.tests] == [
        {"test_doubles": 2, "ZeroTestCase::test_zero": 1}, {"test_five": 1}
    ]  # fmt: skip
    assert (suite.count, set(suite.others)) == (4, {"helper.py"})
    assert suite_of([{"test_a.py": "def test_a(): pass"}]).count == 1
    assert suite_of([{"path": "test_a.py", "content": "pass", "tests": 7}]).count == 7


def test_canary_test_has_a_unique_name() -> None:
    content = "def test_a(): pass\n" + "".join(f"def test_a_{n}(): pass\n" for n in range(2, 12))
    (file,) = suite_of([{"path": "test_a.py", "content": content}]).tests
    for seed in range(50):
        _, (name,) = with_canaries(file, seed)
        assert name not in file.names


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ([], "no file of tests"),
        ([{"path": "helper.py", "content": "x"}], "no file of tests"),
        (["x"], "expected objects with path and content"),
        ([{"path": "../test_a.py", "content": ""}], "no path within a folder"),
        ([{"path": "test_a.py", "content": "def"}], "test_a.py: "),
        ([{"path": "test_a.py", "content": "x = 1"}], 'give their number: "tests": 3'),
        ([{"path": "test_a.py", "content": None}], "content: expected a text"),
        ([{"path": "test_a.py", "content": "", "tests": 0}], "expected the number of its tests"),
        ([{"path": "test_a.py", "content": "import pytest\n@pytest.mark.parametrize('n', range(3))\n"
           "def test_a(n): pass"}], 'give its number of tests: "tests": 3'),
    ],
)  # fmt: skip
def test_unusable_tests_are_named_with_a_remedy(tests: list[object], words: str) -> None:
    with pytest.raises(BadTests) as raised:
        suite_of(tests)
    assert words in str(raised.value)
    assert words in made().check(Entry(question="?", tests=tuple(tests)))
