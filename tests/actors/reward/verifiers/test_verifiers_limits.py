"""Code verifier with limits of single tests: where a program is ended, and what its tests took."""

from collections.abc import Iterator

import pytest

from gleaner.actors.reward.case_limits import CaseLimits, CaseTimes
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers.port import VerifierSpec
from gleaner.actors.reward.verifiers.programs import CodeVerifier
from gleaner.actors.reward.verifiers.registry import make
from tests.actors.reward.verifiers.verifier_modes import MODES, needs

STDIN = Entry(question="?", tests=tuple({"input": f"{n}", "output": f"{2 * n}"} for n in range(3)))
CALLS = Entry(question="?", tests=tuple({"call": "f", "args": [n], "expected": 2 * n} for n in range(3)))
LIMITS = CaseLimits(2.0, (0.1, 0.1, 0.1))
SPIN = "import time\nwhile time.process_time() < 0.1: pass\n"
CHILD = """
import os
pid = os.fork()
if not pid:
    import time
    while time.process_time() < 0.1: pass
    os._exit(0)
os.waitpid(pid, 0)
"""
LOOPS = [
    (STDIN, "n = int(input())\nwhile n == 1: pass\nprint(2 * n)"),
    (CALLS, "def f(n):\n    while n == 1: pass\n    return 2 * n"),
]


def made(mode: str, score: str) -> CodeVerifier:
    needs(mode)
    verifier = make(
        VerifierSpec(name="code", task="doubles", params={"score": score}, isolation=mode, deadline_s=4.0)
    )
    assert isinstance(verifier, CodeVerifier)
    return verifier


@pytest.fixture(scope="module", params=MODES)
def verifier(request: pytest.FixtureRequest) -> Iterator[CodeVerifier]:
    verifier = made(request.param, "all")
    yield verifier
    verifier.close()


def judged(verifier: CodeVerifier, entry: Entry, source: str, limits: CaseLimits) -> Judgement:
    (found,) = verifier.score_within([(entry, f"```python\n{source}\n```")], [limits])
    return found


@pytest.mark.parametrize(("entry", "source"), LOOPS)
def test_endless_test_is_ended_at_its_own_limit(verifier: CodeVerifier, entry: Entry, source: str) -> None:
    found = judged(verifier, entry, source, LIMITS)
    assert (found.score, found.status) == (0.0, "timeout"), found
    assert found.detail == "test 2 of 3: it took too long"
    assert found.tests == CaseTimes(cut=True)
    assert found.cpu_s < 1.0, "a kernel's limit is in whole seconds"


@pytest.mark.parametrize("source", [SPIN, CHILD], ids=["itself", "child"])
@pytest.mark.parametrize(
    ("entry", "program"), [(STDIN, "print(2 * int(input()))"), (CALLS, "def f(n): return 2 * n")]
)
def test_time_of_the_module_and_of_children_counts(
    verifier: CodeVerifier, entry: Entry, source: str, program: str
) -> None:
    found = judged(verifier, entry, source + program, CaseLimits(2.0))
    assert (found.score, found.status) == (1.0, "ok"), found
    assert found.tests is not None
    assert not found.tests.cut
    slow = [one_s >= 0.08 for one_s in found.tests.right_s]
    assert slow == ([True] * 3 if entry is STDIN else [True, False, False])
    assert sum(found.tests.right_s) <= found.cpu_s + 1e-6


def test_cut_test_fails_alone_where_the_share_counts() -> None:
    verifier = made("auto", "share")
    found = judged(verifier, CALLS, LOOPS[1][1], LIMITS)
    verifier.close()
    assert (found.score, found.status, found.parts["passed"]) == (2 / 3, "ok", 2.0), found
    assert found.tests == CaseTimes(cut=True)


def test_sleeping_program_has_its_own_timeout(verifier: CodeVerifier) -> None:
    found = judged(verifier, STDIN, "import time\ntime.sleep(60)", CaseLimits(0.01))
    assert (found.score, found.status) == (0.0, "timeout"), found
    assert found.detail == "still running after 2.24 s"
