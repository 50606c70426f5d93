"""Scores of answers by the verifiers of reasoning-gym, in the sandbox of this machine."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gleaner.actors.reward.problems import Problems
from gleaner.actors.reward.sandbox.detection import NoSandbox, detect
from gleaner.actors.reward.sandbox.port import Isolation, Limits
from gleaner.actors.reward.source import SPLITS, Split
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers import plain_answers, reasoning
from gleaner.actors.reward.verifiers.answers import AnswerVerifier
from gleaner.actors.reward.verifiers.port import VerifierSpec

TASKS = ["spell_backward", "chain_sum", "number_sorting", "word_sequence_reversal", "gsm_symbolic"]
EVALUATING = [
    "countdown", "puzzle24", "polynomial_multiplication", "simple_integration", "intermediate_integration",
    "n_queens", "spiral_matrix", "binary_matrix", "string_insertion",
]  # fmt: skip
"""Tasks whose verifiers evaluate the answer."""
MODES = [mode.value for mode in Isolation]


class Scored:
    """Problems of a task and their verifier."""

    def __init__(self, name: str, isolation: str = "auto") -> None:
        self.problems = Problems(name, {}, seed=5)
        self.verifier = AnswerVerifier(VerifierSpec(name="reasoning-gym", task=name, isolation=isolation))

    def judged(self, split: Split, index: int, *responses: str) -> list[Judgement]:
        entry = self.problems.entry(split, index)
        return self.verifier.score_all([(entry, response) for response in responses])

    def score(self, split: Split, index: int, response: str) -> float:
        return self.judged(split, index, response)[0].score


@pytest.fixture
def scored(request: pytest.FixtureRequest) -> Iterator[Scored]:
    made = Scored(*request.param) if isinstance(request.param, tuple) else Scored(request.param)
    yield made
    made.verifier.close()


@pytest.fixture(scope="module")
def words() -> Iterator[Scored]:
    made = Scored("spell_backward")
    yield made
    made.verifier.close()


@pytest.mark.parametrize("scored", TASKS, indirect=True)
def test_package_gives_full_marks_to_its_own_answers(scored: Scored) -> None:
    for split in SPLITS:
        for index in (2, 0, 9):
            answer = scored.problems.problem(split, index).answer
            tagged = f"<think>hm, or {answer}0</think><answer>{answer}</answer>"
            assert scored.judged(split, index, answer, tagged) == [Judgement(1.0)] * 2


def test_wrong_answer_scores_below_the_right_one(words: Scored) -> None:
    answer = words.problems.problem("train", 7).answer
    wrong = "".join("b" if letter == "a" else "a" for letter in answer.lower())
    assert words.score("train", 7, f"<answer>{wrong}</answer>") == 0.0
    assert 0.0 < words.score("train", 7, answer[: len(answer) // 2]) < 1.0


def test_any_text_scores_between_0_and_1(words: Scored) -> None:
    @given(st.lists(st.text(max_size=60), min_size=1, max_size=5))
    @settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
    def scores(responses: list[str]) -> None:
        assert all(0.0 <= one.score <= 1.0 for one in words.judged("train", 0, *responses))

    scores()


def needs(mode: str) -> None:
    try:
        detect(mode)
    except NoSandbox as problem:
        pytest.skip(str(problem))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", EVALUATING)
def test_program_as_answer_is_not_run_and_scores_low(name: str, mode: str, tmp_path: Path) -> None:
    needs(mode)
    mark = tmp_path / "mark"
    tmp_path.chmod(0o777)
    scored = Scored(name, mode)
    answer = scored.problems.problem("train", 0).answer
    forged = "__import__('os').write(3, b'\\x03\\x00\\x00\\x001.0') + __import__('os')._exit(0)"
    attempts = [
        f"__import__('os').system('touch {mark}')",
        f"open('{mark}', 'w')",
        forged,
        "().__class__.__base__.__subclasses__()",
        "[1 for _ in iter(int, 1)]",
        "exit(0)",
    ]
    judged = scored.judged(
        "train", 0, f"<answer>{answer}</answer>", *(f"<answer>{one}</answer>" for one in attempts)
    )
    scored.verifier.close()
    assert judged[0] == Judgement(1.0)
    assert all(one.score <= 0.05 for one in judged[1:]), "at most the score that the package gives any text"
    assert not mark.exists()


@pytest.fixture(scope="module")
def run_by_the_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each task has a folder in which the package alone scored an answer that makes a mark. One process
    for all of them: it takes two seconds to import the package."""
    import subprocess
    import sys

    program = f"""
import os
from gleaner.actors.reward.problems import Problems
top = os.getcwd()
for name in {EVALUATING!r}:
    os.mkdir(os.path.join(top, name))
    os.chdir(os.path.join(top, name))
    problems = Problems(name, {{}}, 5)
    try:
        entry = problems.entry("train", 0).info
        problems._block(0).score_answer("__import__('pathlib').Path('mark').touch()", entry)
    except Exception:
        pass
"""
    directory = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, "-c", program], cwd=directory, check=True)
    return directory


@pytest.mark.parametrize("name", EVALUATING)
def test_package_alone_runs_the_same_answers(name: str, run_by_the_package: Path) -> None:
    """The negative control, on our own text: without the patches of `prepare`, the verifiers evaluate it."""
    assert (run_by_the_package / name / "mark").exists()


def test_endless_answer_times_out_alone() -> None:
    scored = Scored("countdown")
    scored.verifier._limits = Limits(cpu_s=1.0, wall_s=120.0)
    answer = scored.problems.problem("train", 0).answer
    judged = scored.judged("train", 0, answer, "factorial(20000000)", answer)
    scored.verifier.close()
    assert [one.status for one in judged] == ["ok", "timeout", "ok"]
    assert [one.score for one in judged] == [1.0, 0.0, 1.0]


def test_results_are_read_strictly() -> None:
    assert reasoning.judgements(b"1.0\n0.5", 2) == [Judgement(1.0), Judgement(0.5)]
    assert reasoning.judgements(b"1.0", 2) is None
    assert reasoning.judgements(b"7.0\n-1\nnan\n1.0 and more", 4) == [
        Judgement(1.0),
        Judgement(0.0),
        Judgement(0.0, "no_answer", "the package's score of it is nan"),
        Judgement(0.0, "verifier_failed", "its result is no number: b'1.0 and more'"),
    ]
    assert reasoning.judgements(reasoning.RAISED + b"ValueError: x", 1) == [
        Judgement(0.0, "no_answer", "ValueError: x")
    ]


@pytest.mark.parametrize(
    "text", ["[1, 2]", "'ab'", "{'a': [1, (2, 3)]}", "-3.5", " [[0, 1], [1, 0]] ", "None", "[1, -2]"]
)
def test_literals_are_read(text: str) -> None:
    assert plain_answers.literal(text) == eval(text)


@pytest.mark.parametrize(
    "text", ["f()", "[].append", "x", "1 + y", "[1 for x in y]", "(", "9" * 30_000, 7, b"1"]
)
def test_non_literals_are_refused(text: object) -> None:
    with pytest.raises(plain_answers.NotPlain):
        plain_answers.literal(text)


@pytest.mark.parametrize(
    "text",
    ["3*x**2 + 2*x - 7", "-(4.5 + .5)*(8-2)/3", "x*sin(x) + C", "exp(2*x)/2", "5! + 3", "1e5*x", "2.*y3"],
)
def test_formulas_are_accepted(text: str) -> None:
    assert plain_answers.formula(text) == text


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "x.args", "lambda: 1", "open(x)", "x[0]", "'a'",
     "f\"{x}\"", "sin(x).func", "1 .real",
     "x if y else z", "a;b", "x" * 3000, "exec(x)", "1.__class__", "(x).args", "x\\y", "x:=3"],
)  # fmt: skip
def test_non_formulas_are_refused(text: str) -> None:
    with pytest.raises(plain_answers.NotPlain):
        plain_answers.formula(text)


def test_scores_that_are_no_numbers_are_zero() -> None:
    assert all(math.isfinite(one.score) for one in reasoning.judgements(b"inf\n-inf\nnan", 3) or [])
