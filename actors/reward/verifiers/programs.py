"""`CodeVerifier`: verifier `code` of programs in Python, which it runs in a sandbox.

This is the trusted end, which compares the output.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import msgspec

from gleaner.actors.reward import verdicts
from gleaner.actors.reward.case_limits import CaseLimits
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.sandbox.port import Limits, Outcome, Status, Work
from gleaner.actors.reward.verdicts import NO_ANSWER, VERIFIER_FAILED, Judgement
from gleaner.actors.reward.verifiers import params, responses
from gleaner.actors.reward.verifiers.cases import BadTests, Case, cases_of
from gleaner.actors.reward.verifiers.grading import Grading
from gleaner.actors.reward.verifiers.port import Trial, VerifierSpec
from gleaner.actors.reward.verifiers.sandboxed import Sandboxed

INSIDE = "gleaner.actors.reward.verifiers.program_runs"
LANGUAGES = ("python", "py", "python3", "")
"""Accepted words behind the fence of a block."""
USUAL = (
    "bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools",
    "math", "operator", "random", "re", "statistics", "string", "typing",
)  # fmt: skip
"""Modules that programs import most, loaded once for all of them."""
WALL_FACTOR, WALL_EXTRA_S = 8, 2.0
"""Time on the clock over the limits of all tests, which ends a program that sleeps. Waits for a processor are
not counted, so it need not be more."""
RESULT_BYTES = 16 * 2**20
FILE_BYTES = 32 * 2**20

_results: msgspec.json.Decoder[list[tuple[str, str, float]]] = msgspec.json.Decoder(
    list[tuple[str, str, float]]
)


class ProgramParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """score: "all": 1 where every test passes, else 0; "share": the share of tests that pass. tolerance:
    within which numbers with a fraction are equal, absolute or relative. deadline_s: processor time of a
    program with all its tests, at most and by default the job's; test_s: of one test. prelude: source that is
    put before each program."""

    score: Literal["all", "share"] = "all"
    tolerance: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1e-6
    deadline_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    test_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    memory_mb: Annotated[int, msgspec.Meta(ge=16, le=2**16)] = 512
    prelude: str = ""

    @property
    def grading(self) -> Grading:
        """How the results of the tests become a score."""
        return Grading(self.score == "all", self.tolerance)


class CodeParams(ProgramParams, frozen=True, forbid_unknown_fields=True):
    """Parameters of programs in Python."""

    language: Literal["python"] = "python"


class CodeVerifier(Sandboxed):
    """A `Verifier`. `Entry.tests`: inputs and expected outputs, in the formats of `cases`."""

    def __init__(self, spec: VerifierSpec) -> None:
        self._params = params.read(spec, CodeParams)
        deadline_s = params.deadline_s(spec, self._params.deadline_s)
        self._limits = Limits(
            cpu_s=deadline_s,
            wall_s=2 * deadline_s,
            memory_bytes=self._params.memory_mb * 2**20,
            file_bytes=FILE_BYTES,
            result_bytes=RESULT_BYTES,
        )
        self._grading = self._params.grading
        self._test_s = min(self._params.test_s or deadline_s, deadline_s)
        super().__init__(spec.isolation, [INSIDE, *USUAL])

    def check(self, entry: Entry) -> str:
        """See `Verifier`."""
        try:
            cases_of(entry.tests, entry.info)
        except BadTests as problem:
            return str(problem)
        return ""

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        """See `Verifier`: the last fenced block of Python is run with the inputs of all tests, a program for
        each response; the expected output stays here."""
        return self.score_within(items, [None] * len(items))

    def score_within(
        self, items: Sequence[tuple[Entry, str]], limits: Sequence[CaseLimits | None]
    ) -> list[Judgement]:
        """See `LimitsTests`."""
        known: dict[int, list[Case]] = {}

        def judge(item: tuple[tuple[Entry, str], CaseLimits | None]) -> Judgement:
            (entry, response), limited = item
            try:
                if id(entry) not in known:
                    known[id(entry)] = cases_of(entry.tests, entry.info)
            except BadTests as problem:
                return Judgement(0.0, VERIFIER_FAILED, str(problem))
            return self._judge(known[id(entry)], response, limited)

        return self.judged(list(zip(items, limits, strict=True)), judge, self._limits.cpu_s)

    def try_one(self, entry: Entry, response: str) -> Trial:
        """See `Tries`."""
        (judged,) = self.score_all([(entry, response)])
        return Trial(judgement=judged, read=program_of(response) or "")

    def _judge(self, cases: list[Case], response: str, limited: CaseLimits | None) -> Judgement:
        source = program_of(response)
        if source is None:
            return Judgement(0.0, NO_ANSWER, "it holds no closed block of Python between ``` fences")
        tests_s = [self._test_s] * len(cases)
        if limited:
            tests_s = [min(one_s, self._test_s) for one_s in limited.of(len(cases))]
        asked = {
            "source": f"{self._params.prelude}\n{source}" if self._params.prelude else source,
            "call": cases[0].call,
            "inputs": [case.given for case in cases],
            "tests_s": tests_s,
            "watched": limited is not None,
            "stop": self._params.score == "all",
        }
        payload = json.dumps(asked).encode()
        if limited:
            wall_s = min(self._limits.wall_s, WALL_FACTOR * sum(tests_s) + WALL_EXTRA_S)
            outcome = self._run_once("run", payload, replace(self._limits, wall_s=wall_s))
        else:
            outcome = self._run(payload, calls=bool(cases[0].call))
        if outcome.status is not Status.OK:
            return verdicts.of_failure(outcome)
        return self._compared(cases, outcome, limited)

    def _run(self, payload: bytes, *, calls: bool) -> Outcome:
        """The results of the tests. Calls are first made without a child. If one of them ended the process,
        they are made again with one, in the remaining time, because only then it is known which."""
        limits = self._limits
        if calls:
            outcome = self._run_once("calls", payload, limits)
            left_cpu_s, left_wall_s = limits.cpu_s - outcome.cpu_s, limits.wall_s - outcome.wall_s
            again = outcome.status not in (Status.OK, Status.SANDBOX_FAILED) and not outcome.limited
            if not again or min(left_cpu_s, left_wall_s) <= 0:
                return outcome
            limits = replace(limits, cpu_s=left_cpu_s, wall_s=left_wall_s)
        return self._run_once("run", payload, limits)

    def _run_once(self, function: str, payload: bytes, limits: Limits) -> Outcome:
        return self.sandbox.run(Work(function=f"{INSIDE}:{function}", payload=payload, limits=limits))

    def _compared(self, cases: list[Case], outcome: Outcome, limited: CaseLimits | None) -> Judgement:
        try:
            results = _results.decode(outcome.result)
        except (msgspec.MsgspecError, RecursionError):
            return Judgement(0.0, Status.CRASHED.value, "it wrote over its result", cpu_s=outcome.cpu_s)
        return self._grading.judgement(cases, results, outcome.cpu_s, limited)


def program_of(response: str) -> str | None:
    """The program of a response: its last closed block with a fence of Python or without a language."""
    found = [one for one in responses.blocks(responses.after_thinking(response)) if one.language in LANGUAGES]
    return found[-1].content if found else None
