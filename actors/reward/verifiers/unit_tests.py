"""`UnitTestVerifier`: verifier `unit_tests`, a problem's tests on a response.

This is the trusted end. Tests and response share an interpreter, because tests call the tested code, so a
response that changes the runner can forge results. The checks are: every known test is reported, once, with
nothing else; tests that must fail are reported as failed; the runner ends as pytest does (docs/verifiers.md).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Literal

import msgspec

from gleaner.actors.reward import verdicts
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.sandbox.port import Limits, Outcome, Status, Work
from gleaner.actors.reward.verdicts import NO_ANSWER, OK, VERIFIER_FAILED, Judgement
from gleaner.actors.reward.verifiers import params, responses, suites
from gleaner.actors.reward.verifiers.cases import BadTests
from gleaner.actors.reward.verifiers.port import VerifierSpec
from gleaner.actors.reward.verifiers.programs import LANGUAGES
from gleaner.actors.reward.verifiers.sandboxed import Sandboxed
from gleaner.actors.reward.verifiers.suites import OURS, Suite

INSIDE = "gleaner.actors.reward.verifiers.unit_runs"
SOLUTION = "solution.py"
MARKS = ("path=", "file=", "title=", "filename=")
TESTS_FAILED = 1
"""Exit code of pytest where a test failed: the ones that must fail do."""

_Tests = list[tuple[str, str, str]]
_results: msgspec.json.Decoder[list[tuple[str, int, bool, _Tests]]] = msgspec.json.Decoder(
    list[tuple[str, int, bool, _Tests]]
)
_Canaries = Mapping[str, Sequence[str]]


class UnitTestParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """score: "all": 1 where every test passes, else 0; "share": the share of tests that pass. deadline_s:
    processor time of all tests of a response, at most and by default the job's."""

    score: Literal["all", "share"] = "all"
    deadline_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    memory_mb: Annotated[int, msgspec.Meta(ge=16, le=2**16)] = 512


class UnitTestVerifier(Sandboxed):
    """A `Verifier`. `Entry.tests`: files, in the shapes of `suites`."""

    def __init__(self, spec: VerifierSpec) -> None:
        self._params = params.read(spec, UnitTestParams)
        deadline_s = params.deadline_s(spec, self._params.deadline_s)
        memory_bytes = self._params.memory_mb * 2**20
        self._limits = Limits(cpu_s=deadline_s, wall_s=2 * deadline_s, memory_bytes=memory_bytes)
        super().__init__(spec.isolation, [INSIDE])

    def check(self, entry: Entry) -> str:
        """See `Verifier`."""
        try:
            suites.suite_of(entry.tests)
        except BadTests as problem:
            return str(problem)
        return ""

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        """See `Verifier`: a program of the sandbox for each response."""
        return self.judged(items, lambda item: self._judge(*item), self._limits.cpu_s)

    def _judge(self, entry: Entry, response: str) -> Judgement:
        try:
            suite = suites.suite_of(entry.tests)
        except BadTests as problem:
            return Judgement(0.0, VERIFIER_FAILED, str(problem))
        files = files_of(response)
        if not files:
            return Judgement(0.0, NO_ANSWER, "it holds no closed block of Python between ``` fences")
        seed = int.from_bytes(
            hashlib.blake2b(response.encode("utf-8", "replace"), digest_size=8).digest(), "big"
        )
        placed = {"pytest.ini": "[pytest]\n", **suite.others}
        canaries: dict[str, list[str]] = {}
        for file in suite.tests:
            placed[file.path], canaries[file.path] = suites.with_canaries(file, seed)
        asked = {
            "response": {path: content for path, content in files.items() if path not in placed},
            "files": placed,
            "tests": [file.path for file in suite.tests],
        }
        work = Work(function=f"{INSIDE}:run", payload=json.dumps(asked).encode(), limits=self._limits)
        outcome = self.sandbox.run(work)
        if outcome.status is not Status.OK:
            return verdicts.of_failure(outcome)
        return self._compared(suite, canaries, outcome)

    def _compared(self, suite: Suite, canaries: _Canaries, outcome: Outcome) -> Judgement:
        try:
            results = {
                path: (code, forged, tests) for path, code, forged, tests in _results.decode(outcome.result)
            }
        except (msgspec.MsgspecError, RecursionError):
            results = {}
        passed, first, crashed = 0, "", False
        for file in suite.tests:
            if file.path not in results:
                return self._cheated("its result was written over", outcome)
            code, forged, tests = results[file.path]
            found, why = _outcomes(file.path, tests, canaries[file.path])
            if forged:
                return self._cheated(f"{file.path}: reports were forged", outcome)
            if code != TESTS_FAILED:
                crashed |= not first
                first = first or why or f"{file.path}: the runner ended with {code}"
                continue
            for name in canaries[file.path]:
                if found.pop(name, ["missing"]) != ["failed"]:
                    return self._cheated(f"{file.path}: a test that must fail was not reported so", outcome)
            if problem := _missing(file.names, file.count, found):
                return self._cheated(f"{file.path}: {problem}", outcome)
            good = sum(outcomes.count("passed") for outcomes in found.values())
            passed += good
            if good < file.count:
                first = first or why or f"{file.path}: a test was skipped"
        whole = self._params.score == "all"
        score = float(passed == suite.count) if whole else passed / suite.count
        parts = {"passed": float(passed), "tests": float(suite.count)}
        status = Status.CRASHED.value if whole and crashed else OK
        return Judgement(score, status, first[:300], parts, outcome.cpu_s)

    def _cheated(self, why: str, outcome: Outcome) -> Judgement:
        return Judgement(0.0, Status.CRASHED.value, why[:300], cpu_s=outcome.cpu_s)


def _outcomes(path: str, tests: _Tests, canaries: Sequence[str]) -> tuple[dict[str, list[str]], str]:
    """Outcomes by name without its parameters, and the words of the first failure that is no canary's."""
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    words: dict[str, str] = {}
    for node, outcome, why in tests:
        name = node.removeprefix(f"{path}::").partition("[")[0]
        if outcome in ("why", "not collected"):
            if name not in canaries:
                words.setdefault(name, f"{node}: {why}")
        else:
            found.setdefault(name, []).append("twice" if node in seen else outcome)
            seen.add(node)
    return found, next(iter(words.values()), "")


def _missing(names: Mapping[str, int], count: int, found: Mapping[str, list[str]]) -> str:
    reported = Counter({name: len(outcomes) for name, outcomes in found.items()})
    if names and reported != Counter(names):
        return f"{reported.total()} tests were reported and it has {count}, or by other names"
    return "" if reported.total() == count else f"{reported.total()} tests were reported, it has {count}"


def files_of(response: str) -> dict[str, str]:
    """The files of a response: blocks whose fence has a path, else the last block of Python as `solution.py`.

    Files that steer pytest, and paths that leave the folder, are dropped."""
    found: dict[str, str] = {}
    last = None
    for block in responses.blocks(responses.after_thinking(response)):
        if path := _path(block.info):
            found[path] = block.content
        elif block.language in LANGUAGES:
            last = block.content
    if not found and last is not None:
        found[SOLUTION] = last
    return {path: content for path, content in found.items() if _allowed(path)}


def _path(info: str) -> str:
    for word in info.split():
        mark = next((mark for mark in MARKS if word.startswith(mark)), "")
        word = word.removeprefix(mark).strip("\"'")
        if mark or "." in word or "/" in word:
            return str(PurePosixPath(word))
    return ""


def _allowed(path: str) -> bool:
    return suites.safe(path) and PurePosixPath(path).name not in OURS and not path.endswith(".pth")
