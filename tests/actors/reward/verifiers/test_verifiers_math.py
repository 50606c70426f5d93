"""Mathematical answers, compared by math-verify in the sandbox."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.sandbox.port import Outcome, Status
from gleaner.actors.reward.verifiers.math_answers import MathVerifier
from gleaner.actors.reward.verifiers.port import BadVerifier, VerifierSpec
from gleaner.actors.reward.verifiers.registry import make
from tests.actors.reward.verifiers.verifier_modes import MODES, needs


def made(mode: str = "auto", deadline_s: float = 2.0, **params: object) -> MathVerifier:
    spec = VerifierSpec(name="math", task="sums", params=params, isolation=mode, deadline_s=deadline_s)
    verifier = make(spec)
    assert isinstance(verifier, MathVerifier)
    return verifier


def entry(answer: object) -> Entry:
    return Entry(question="?", answer=answer)


@pytest.fixture(scope="module", params=MODES)
def verifier(request: pytest.FixtureRequest) -> Iterator[MathVerifier]:
    needs(request.param)
    verifier = made(request.param, deadline_s=1.0)
    yield verifier
    verifier.close()


@pytest.fixture(scope="module")
def one() -> Iterator[MathVerifier]:
    verifier = made()
    yield verifier
    verifier.close()


RIGHT = [
    ("42", r"The answer is $\boxed{42}$."),
    (42, "so it is 42"),
    (0.5, "<answer>1/2</answer>"),
    (r"\frac12", r"<think>is it 3?</think> It is $\frac{1}{2}$."),
    (r"$\frac{\sqrt{2}}{2}$", r"\boxed{\frac{1}{\sqrt2}}"),
    ("x^2+1", "<answer>1 + x^2</answer>"),
    ("1,234", "that makes 1234"),
    (r"\{1, 2\}", r"\boxed{2, 1}"),
    (r"50\%", r"\boxed{0.5}"),
    ("Monday", r"\boxed{Monday}"),
    (["7", "8"], "It is 8."),
]
WRONG = [
    ("42", r"$\boxed{43}$"),
    ("0.3333", r"$\boxed{0.33}$"),
    ("x^2+1", r"$\boxed{x^2-1}$"),
    ("42", r"First 42, no: \boxed{41}"),
    (r"\{1, 2\}", r"\boxed{1, 2, 3}"),
    ("3", r"\boxed{\frac{0}{0}}"),
    ("3", r"\boxed{\text{any number}}"),
]


def test_equal_answer_scores_1_and_other_scores_0(verifier: MathVerifier) -> None:
    judged = verifier.score_all([(entry(answer), response) for answer, response in [*RIGHT, *WRONG]])
    wrong = [pair for pair, one in zip(RIGHT, judged, strict=False) if (one.score, one.status) != (1.0, "ok")]
    assert not wrong
    right = [pair for pair, one in zip(WRONG, judged[len(RIGHT) :], strict=True) if one.score]
    assert not right
    assert all(one.status == "ok" for one in judged)


@pytest.mark.parametrize("response", ["", "I do not know.", "<answer></answer>", "$$$$", r"\boxed{"])
def test_response_without_mathematics_has_no_answer(one: MathVerifier, response: str) -> None:
    (judged,) = one.score_all([(entry("3"), response)])
    assert (judged.score, judged.status) == (0.0, "no_answer")


def test_answer_that_hangs_sympy_times_out_alone(verifier: MathVerifier) -> None:
    responses = [r"\boxed{42}", r"\boxed{\sum_{n=1}^{10^9} \frac{1}{n}}", r"\boxed{42}"]
    judged = verifier.score_all([(entry("42"), response) for response in responses])
    assert [(one.score, one.status) for one in judged] == [(1.0, "ok"), (0.0, "timeout"), (1.0, "ok")]


def test_answer_is_retried_alone_after_a_full_process() -> None:
    verifier = made()
    sandbox = verifier.sandbox

    def full(_work: object) -> Outcome:
        return Outcome(status=Status.MEMORY, detail="full of what was before")

    sandbox.ask = full  # type: ignore[method-assign]
    (judged,) = verifier.score_all([(entry("42"), r"\boxed{42}")])
    verifier.close()
    assert (judged.score, judged.status) == (1.0, "ok")


def test_params_set_precision_and_place_of_the_answer() -> None:
    verifier = made(precision=2, boxed=True)
    judged = verifier.score_all(
        [
            (entry("0.333"), r"\boxed{0.334}"),
            (entry("0.333"), r"\boxed{0.35}"),
            (entry("7"), "It is 7."),
        ]
    )
    verifier.close()
    assert [(one.score, one.status) for one in judged] == [(1.0, "ok"), (0.0, "ok"), (0.0, "no_answer")]


@pytest.mark.parametrize(
    ("params", "words"),
    [({"precison": 3}, "did you mean precision?"), ({"precision": -1}, ">= 0"), ({"strict": "yes"}, "bool")],
)
def test_wrong_params_are_refused_by_name(params: dict[str, object], words: str) -> None:
    with pytest.raises(BadVerifier, match=words):
        made(**params)


@pytest.mark.parametrize("answer", ["42", 42, -0.5, r"\frac12", ["1", 2]])
def test_comparable_expected_answer_passes_the_check(answer: object) -> None:
    assert made().check(entry(answer)) == ""


@pytest.mark.parametrize(
    ("answer", "words"),
    [(None, "missing"), ("", "empty"), ([], "empty list"), (["1", " "], "empty"), (True, "bool"),
     ({"x": 1}, "dict")],
)  # fmt: skip
def test_incomparable_expected_answer_is_named(answer: object, words: str) -> None:
    assert words in made().check(entry(answer))


def test_trusted_side_does_not_load_sympy() -> None:
    program = (
        "import sys; import gleaner.actors.reward.verifiers.math_answers; sys.exit('sympy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# Run in a process of its own, since its patches stay.
_WATCHED = """
import sys
from gleaner.actors.reward.verifiers import math_comparison
seen = []
def hook(event, arguments):
    source, name = (*arguments, "", "")[:2]
    if event == "compile" and isinstance(source, str | bytes) and str(name).startswith("<"):
        seen.append(source if isinstance(source, str) else source.decode())
    if event in ("os.system", "subprocess.Popen", "open") and "planted" in str(arguments):
        seen.append(f"planted: {event}")
if PREPARED:
    math_comparison.prepare()
sys.addaudithook(hook)
import sympy
from math_verify import verify
texts = [
    "__import__('os').system('planted')",
    "$__import__('os').system('planted')$",
    "\\\\boxed{\\\\text{__import__('os').system('planted')}}",
    "\\\\boxed{\\\\operatorname{__import__}(os)}",
    "\\\\boxed{\\\\mathrm{eval}(x) + \\\\operatorname{open}(planted)}",
    "1+2*(3)-__import__('os')",
    "3*(4+5)/2",
    "\\\\boxed{x_{__import__('os').system('planted')}}",
    "\\\\boxed{\\\\sum_{n=1}^{9} \\\\frac{1}{n}} and \\\\boxed{x^5 - x - 1 = 0}",
]
for text in texts:
    for response in (text, f"<answer>{text}</answer>"):
        for way in math_comparison.read_answer(response, boxed=False):
            for expected in ("3", "x^5-x-1=0", "\\\\operatorname{open}(x)"):
                verify(math_comparison.read_expected(expected), way, timeout_seconds=None)
            try:
                sympy.sympify(way[-1])
            except Exception:
                pass
bad = [one for one in seen if any(word in one for word in ("__import__", "planted", "open", "eval"))]
print([one[:80] for one in bad])
sys.exit(bool(bad))
"""


@pytest.mark.parametrize("prepared", [True, False])
def test_response_text_is_never_compiled_or_run(prepared: bool) -> None:
    """sympy alone would, which is the negative control."""
    program = _WATCHED.replace("PREPARED", str(prepared))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == (0 if prepared else 1), done.stdout + done.stderr
