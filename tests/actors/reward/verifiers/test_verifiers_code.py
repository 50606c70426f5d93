"""Code verifier: programs run in the sandbox with the inputs of their tests, scored by their output."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.sandbox.port import Outcome, Work
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers.port import BadVerifier, VerifierSpec
from gleaner.actors.reward.verifiers.programs import CodeVerifier
from gleaner.actors.reward.verifiers.registry import make
from tests.actors.reward.verifiers.verifier_modes import MODES, needs

STDIN = Entry(question="?", tests=tuple({"input": f"{n}\n", "output": f"{2 * n}"} for n in range(4)))
CALLS = Entry(question="?", tests=tuple({"call": "f", "args": [n], "expected": 2 * n} for n in range(4)))


def made(mode: str = "auto", deadline_s: float = 2.0, **params: object) -> CodeVerifier:
    spec = VerifierSpec(name="code", task="doubles", params=params, isolation=mode, deadline_s=deadline_s)
    verifier = make(spec)
    assert isinstance(verifier, CodeVerifier)
    return verifier


def fenced(source: str) -> str:
    return f"Here it is:\n```python\n{source}\n```\n"


@pytest.fixture(scope="module", params=MODES)
def verifier(request: pytest.FixtureRequest) -> Iterator[CodeVerifier]:
    needs(request.param)
    verifier = made(request.param)
    yield verifier
    verifier.close()


@pytest.fixture(scope="module")
def shares() -> Iterator[CodeVerifier]:
    verifier = made(score="share", test_s=0.3)
    yield verifier
    verifier.close()


def judged(verifier: CodeVerifier, entry: Entry, source: str) -> Judgement:
    return verifier.score_all([(entry, fenced(source))])[0]


RIGHT = [
    (STDIN, "print(2 * int(input()))"),
    (STDIN, "import sys\nfor line in sys.stdin: sys.stdout.write(str(2 * int(line)))"),
    (STDIN, "import os\nos.write(1, b'%d' % (2 * int(os.read(0, 100))))"),
    (STDIN, "n = int(open(0).read())\nprint(2 * n)\nexit()"),
    (STDIN, "import sys, os\nprint(2 * int(input()), flush=True)\nos._exit(0)"),
    (STDIN, "def main():\n    print(2 * int(input()))\nif __name__ == '__main__':\n    main()"),
    (STDIN, "import threading\nthreading.Thread(target=lambda: print(2 * int(input()))).start()"),
    (STDIN, "import atexit\natexit.register(lambda: print(2 * int(input())))"),
    (STDIN, "import sys\nsys.setrecursionlimit(10**6)\nprint(2 * int(input()))\nprint('x', file=sys.stderr)"),
    (CALLS, "def f(n):\n    return 2 * n"),
    (CALLS, "f = lambda n: float(2 * n)"),
    (CALLS, "class Solution:\n    def f(self, n):\n        return 2 * n"),
    (CALLS, "import numpy\ndef f(n):\n    return numpy.int64(2 * n)"),
    (CALLS, "def f(n):\n    print('noise')\n    return 2 * n"),
]


@pytest.mark.parametrize(("entry", "source"), RIGHT, ids=range(len(RIGHT)))
def test_right_program_scores_1(verifier: CodeVerifier, entry: Entry, source: str) -> None:
    found = judged(verifier, entry, source)
    assert (found.score, found.status, found.detail) == (1.0, "ok", "")
    assert found.parts == {"passed": 4.0, "tests": 4.0}


WRONG = [
    (STDIN, "print(3 * int(input()))", "ok", "test 2 of 4: another output: '3"),
    (STDIN, "pass", "ok", "test 1 of 4: another output: ''"),
    (STDIN, "print(2 * int(input()) if input else 0)\n1/0", "crashed", "test 1 of 4: it raised ZeroDivis"),
    (STDIN, "import sys\nprint(0)\nsys.exit(3)", "crashed", "test 1 of 4: it raised exit code 3"),
    (STDIN, "x = = 1", "crashed", "test 1 of 4: it raised SyntaxError"),
    (STDIN, "import os\nos.kill(os.getpid(), 11)", "crashed", "signal 11"),
    (STDIN, "print('x' * 2**21)", "output", "wrote too much"),
    (CALLS, "def f(n):\n    return 3 * n", "ok", "test 2 of 4: another value: '3'"),
    (CALLS, "def f(n):\n    return str(2 * n)", "ok", "another value: '\"0\"'"),
    (CALLS, "def g(n):\n    return 2 * n", "crashed", "it defines no function 'f'"),
    (CALLS, "def f(n):\n    return {2 * n}", "crashed", "'set' object has no attribute 'tolist'"),
    (CALLS, "def f(n):\n    return 1 // n", "crashed", "ZeroDivisionError"),
    (CALLS, "def f(n):\n    return 'x' * 2**21", "output", "wrote too much: a value of"),
    (CALLS, "def f(n):\n    return [n][:1] * 0 if n else f(n)", "crashed", "RecursionError"),
    (CALLS, "def f(n):\n    return float('nan')", "ok", "another value: 'NaN'"),
    (CALLS, "def f(n):\n    return eval('[' * 90 + ']' * 90)", "ok", "another value"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "source", "status", "words"), WRONG, ids=range(len(WRONG)))
def test_wrong_program_scores_0_with_first_failing_test(
    verifier: CodeVerifier, entry: Entry, source: str, status: str, words: str
) -> None:
    found = judged(verifier, entry, source)
    assert (found.score, found.status) == (0.0, status), found
    assert words in found.detail


def test_response_without_a_program_has_no_answer(verifier: CodeVerifier) -> None:
    (found,) = verifier.score_all([(STDIN, "print(2 * int(input()))")])
    assert (found.score, found.status) == (0.0, "no_answer")


def test_share_of_passed_tests_is_the_optional_score(shares: CodeVerifier) -> None:
    ends = ["1 / 0", "__import__('os')._exit(0)", "__import__('os').kill(__import__('os').getpid(), 9)", "7"]
    for end in ends:
        found = judged(shares, CALLS, f"def f(n):\n    return 2 * n if n != 1 else {end}")
        assert (found.score, found.status, found.parts["passed"]) == (0.75, "ok", 3.0), (end, found)
        found = judged(shares, STDIN, f"n = int(input())\nprint(2 * n if n != 1 else {end})")
        assert (found.score, found.status, found.parts["passed"]) == (0.75, "ok", 3.0), (end, found)
    assert found.detail.startswith("test 2 of 4")


@pytest.mark.parametrize("entry", [STDIN, CALLS])
def test_slow_test_fails_alone(shares: CodeVerifier, entry: Entry) -> None:
    spin = "import time\nwhile time.process_time() < 0.6: pass"
    if entry is CALLS:
        source = (
            "def f(n):\n    if n == 2:\n        " + spin.replace("\n", "\n        ") + "\n    return 2 * n"
        )
    else:
        source = f"n = int(input())\nif n == 2:\n    {spin.replace(chr(10), chr(10) + '    ')}\nprint(2 * n)"
    found = judged(shares, entry, source)
    assert (found.score, found.status, found.detail) == (0.75, "ok", "test 3 of 4: it took too long")


def test_each_stdin_test_starts_with_fresh_modules(verifier: CodeVerifier) -> None:
    source = "import math\nassert not hasattr(math, 'mark')\nmath.mark = 1\nprint(2 * int(input()))"
    assert judged(verifier, STDIN, source).score == 1.0


def test_params_apply_to_every_program() -> None:
    verifier = made(tolerance=0.1, prelude="from math import pi", memory_mb=64)
    entry = Entry(question="?", tests=({"call": "f", "args": [], "expected": 3.0},))
    assert judged(verifier, entry, "def f():\n    return pi - 0.1").score == 1.0
    assert judged(verifier, entry, "def f():\n    return pi + 1").score == 0.0
    assert judged(verifier, entry, "def f():\n    return len(bytearray(2**28))").score == 0.0
    verifier.close()


@pytest.mark.parametrize(
    ("params", "words"),
    [({"score": "most"}, "most"), ({"deadline_s": 5.0}, "raise reward.deadline_s"),
     ({"memory": 5}, "memory_mb"), ({"language": "cobol"}, "cobol"), ({"tolerance": -1}, ">= 0")],
)  # fmt: skip
def test_wrong_params_are_refused(params: dict[str, object], words: str) -> None:
    with pytest.raises(BadVerifier, match=words):
        make(VerifierSpec(name="code", task="doubles", params=params))


def test_problems_are_checked_before_use(verifier: CodeVerifier) -> None:
    assert verifier.check(STDIN) == ""
    assert "no tests" in verifier.check(Entry(question="?"))
    (found,) = verifier.score_all([(Entry(question="?"), fenced("pass"))])
    assert (found.status, "no tests" in found.detail) == ("verifier_failed", True)


_AT_A_TIME = """
import json, os, sys, threading
from tests.actors.reward.verifiers.test_verifiers_code import PROGRAMS, STDIN, fenced, made
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
found = [None] * int(sys.argv[2])
ready = threading.Barrier(len(found))
def judge(place):
    verifier = made(sys.argv[1], deadline_s=0.5, memory_mb=128)
    verifier.open()
    ready.wait()
    judged = [one for source in PROGRAMS for one in verifier.score_all([(STDIN, fenced(source))])]
    found[place] = [[one.status, one.score] for one in judged]
    verifier.close()
threads = [threading.Thread(target=judge, args=(place,)) for place in range(len(found))]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(found))
"""
PROGRAMS = [
    # 0.3 s of 0.5 s of CPU in all; four at a time take longer than the 1 s of wall time that ends a sleep
    "import time\nwhile time.process_time() < 0.07: pass\nprint(2 * int(input()))",
    "print(2 * int(input()))",
    "print(7)",
    "while True: pass",
    "import time\nwhile True: time.sleep(1)",
    "x = bytearray(2**30)",
    "import os\nwhile True: os.write(1, b'x' * 2**16)",
    "1 / 0",
    "print(2 * int(input()))",
]


@pytest.mark.parametrize("mode", MODES)
def test_verdicts_are_the_same_with_four_concurrent_programs(mode: str) -> None:
    needs(mode)

    def judged_with(count: int) -> list[list[list[object]]]:
        words = [sys.executable, "-c", _AT_A_TIME, mode, str(count)]
        root = Path(__file__).parents[4]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, cwd=root)
        return list(json.loads(done.stdout))

    (alone,) = judged_with(1)
    assert [score for _, score in alone] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert [status for status, _ in alone[3:6]] == ["timeout", "timeout", "crashed"]
    assert judged_with(4) == [alone] * 4


CALLS_OF_SANDBOX = [
    ("def f(n):\n    return 2 * n", ["calls"]),
    ("def f(n):\n    return 7", ["calls"]),
    ("def f(n):\n    raise SystemExit", ["calls"]),
    ("import os\ndef f(n):\n    return 2 * n if n < 2 else os._exit(0)", ["calls", "run"]),
    ("def f(n):\n    while True: pass", ["calls"]),
    ("def f(n):\n    return bytearray(10**10)", ["calls"]),
]


@pytest.mark.parametrize(("source", "expected"), CALLS_OF_SANDBOX)
def test_calls_get_a_watching_process_after_an_exit(
    verifier: CodeVerifier, source: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    run = verifier.sandbox.run

    def watched(work: Work) -> Outcome:
        ran.append(work.function.partition(":")[2])
        return run(work)

    monkeypatch.setattr(verifier.sandbox, "run", watched)
    judged(verifier, CALLS, source)
    assert ran == expected


def test_exit_within_any_call_fails_that_test(shares: CodeVerifier) -> None:
    source = "import os\ndef f(n):\n    return 2 * n if n != 2 else os._exit(0)"
    found = judged(shares, CALLS, source)
    assert (found.score, found.parts["passed"]) == (0.75, 3.0)
    assert found.detail == "test 3 of 4: it ended: exit code 0 within a call"
