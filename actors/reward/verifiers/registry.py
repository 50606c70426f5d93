"""Verifiers by name."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from gleaner.actors.reward.verifiers.port import BadVerifier, JudgeSpec, Verifier, VerifierSpec
from gleaner.actors.reward.verifiers.status_scores import StatusScores


def _reasoning(spec: VerifierSpec) -> Verifier:
    from gleaner.actors.reward.verifiers.answers import AnswerVerifier  # loads reasoning-gym, a second

    return AnswerVerifier(spec)


def _math(spec: VerifierSpec) -> Verifier:
    from gleaner.actors.reward.verifiers.math_answers import MathVerifier

    return MathVerifier(spec)


def _code(spec: VerifierSpec) -> Verifier:
    if not is_compiled(spec.params):
        from gleaner.actors.reward.verifiers.programs import CodeVerifier

        return CodeVerifier(spec)
    from gleaner.actors.reward.verifiers.compiled_code import CompiledCodeVerifier

    return CompiledCodeVerifier(spec)


def is_compiled(params: Mapping[str, object]) -> bool:
    """Whether programs of verifier `code` with these parameters need a compiler."""
    return params.get("language", "python") != "python" or "compile" in params


def name_of(given: str, data: str) -> str:
    """The verifier of a task: the given one, "" for that of its problems. data: their file, "" for none."""
    return given or (PYTHON if data else REASONING)


def _unit_tests(spec: VerifierSpec) -> Verifier:
    from gleaner.actors.reward.verifiers.unit_tests import UnitTestVerifier

    return UnitTestVerifier(spec)


def _python(spec: VerifierSpec) -> Verifier:
    from gleaner.actors.reward.verifiers.functions import make

    return make(spec)


def _http(spec: VerifierSpec) -> Verifier:
    from gleaner.actors.reward.verifiers.http_rewards import HttpVerifier

    return HttpVerifier(spec)


def _judge(spec: VerifierSpec) -> Verifier:
    from gleaner.actors.reward.verifiers.judge.verifier import JudgeVerifier

    return JudgeVerifier(spec)


REASONING, PYTHON, HTTP, JUDGE = "reasoning-gym", "python", "http", "judge"
SERVICES = (HTTP, JUDGE)
"""Verifiers that call a service, with a section of its settings."""
CODE, UNIT_TESTS = "code", "unit_tests"
PROGRAMS = (CODE, UNIT_TESTS)
"""Verifiers of programs, which are in fenced blocks."""
VERIFIERS: dict[str, Callable[[VerifierSpec], Verifier]] = {
    REASONING: _reasoning,
    "math": _math,
    CODE: _code,
    UNIT_TESTS: _unit_tests,
    PYTHON: _python,
    HTTP: _http,
    JUDGE: _judge,
}
"""Each maker imports its module when it is called: some take a second to load."""


def make(spec: VerifierSpec) -> Verifier:
    """The verifier that a task names. Raises `BadVerifier`."""
    maker = VERIFIERS.get(spec.name)
    if maker is None:
        near = get_close_matches(spec.name, VERIFIERS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(VERIFIERS))}"
        raise BadVerifier(f"task {spec.task}: no verifier is named {spec.name!r}; {hint}")
    made = maker(spec)
    if spec.scores:
        made = StatusScores(made, spec)
    return made if spec.judge is None else _with_judge(made, spec, spec.judge)


def _with_judge(own: Verifier, spec: VerifierSpec, judge: JudgeSpec) -> Verifier:
    from gleaner.actors.reward.verifiers.judge.composed import WithJudge

    beside = _judge(VerifierSpec(name=JUDGE, task=spec.task, params=judge.params))
    return WithJudge(own, beside, weight=judge.weight, gate=judge.gate)
