"""SandboxFusion's `/run_code`: translation, and real programs in a sandbox."""

import pytest

from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.protocol.reward import CodeRan, CommandRun
from gleaner.actors.reward import pipe
from gleaner.actors.reward.verifiers.code_runs import CodeRuns, missing
from gleaner.actors.reward_service.asking import RunAsk
from gleaner.actors.reward_service.sandbox_fusion import (
    RunCodeAnswer,
    RunCodeBody,
    of_sandbox_fusion,
    to_sandbox_fusion,
)

DONE = CommandRun(status="Finished", execution_time=0.5, return_code=0, stdout="42")


def test_body_becomes_a_program_with_its_limits() -> None:
    body = RunCodeBody(code="c", language="cpp", stdin="41", run_timeout=3, compile_timeout=4)
    expected = RunAsk(language="cpp", code="c", stdin="41", run_s=3, compile_s=4)
    assert of_sandbox_fusion(body) == expected
    with pytest.raises(BadAsk, match="expected one of python"):
        of_sandbox_fusion(RunCodeBody(code="c", language="bash"))


def test_answer_is_success_for_exit_code_0_alone() -> None:
    assert to_sandbox_fusion(CodeRan(request="r", ran=DONE)) == RunCodeAnswer(
        status="Success", run_result=DONE
    )
    error = CommandRun(status="Finished", execution_time=0.1, return_code=1, stderr="main.c:1: error")
    failed = to_sandbox_fusion(CodeRan(request="r", ran=None, compiled=error))
    assert (failed.status, failed.compile_result, failed.run_result) == ("Failed", error, None)
    late = CommandRun(status="TimeLimitExceeded", execution_time=2.0, stderr="timeout: 2 s")
    assert to_sandbox_fusion(CodeRan(request="r", ran=late)).message == "timeout: 2 s"


def item(language: str, code: str, stdin: str = "", run_s: float = 5.0) -> pipe.RunItem:
    return pipe.RunItem(language=language, code=code, stdin=stdin, run_s=run_s, compile_s=20.0)


def test_python_program_gives_output_exit_code_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLEANER_API_KEYS", "a-key")
    runs = CodeRuns("auto")
    try:
        out = runs.run(item("python", "import sys; print(int(input()) + 1); sys.exit(3)", "41")).ran
        assert out is not None
        assert (out.status, out.stdout, out.return_code) == ("Finished", "42\n", 3)
        out = runs.run(item("python3", "import os; print(dict(os.environ)); open('/etc/shadow')")).ran
        assert out is not None
        assert "a-key" not in out.stdout
        assert (out.return_code, "Error" in out.stderr) == (1, True)
        out = runs.run(item("py", "import time; time.sleep(60)", run_s=0.2)).ran
        assert out is not None
        assert (out.status, out.return_code) == ("TimeLimitExceeded", None)
        out = runs.run(item("py", "def")).ran
        assert out is not None
        assert "SyntaxError" in out.stderr
    finally:
        runs.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("cpp", "#include <iostream>\nint main() { int a; std::cin >> a; std::cout << a + 1; return 3; }"),
        (
            "c",
            '#include <stdio.h>\nint main(void) { int a; scanf("%d", &a); printf("%d", a + 1); return 3; }',
        ),
    ],
)
def test_compiled_program_gives_output_or_the_error(language: str, code: str) -> None:
    if why := missing(language):
        pytest.skip(why)
    runs = CodeRuns("auto")
    try:
        found = runs.run(item(language, code, "41"))
        assert found.ran is not None
        assert (found.ran.stdout, found.ran.return_code) == ("42", 3)
        failed = runs.run(item(language, "int main() { retrun 3; }"))
        assert failed.ran is None
        assert failed.compiled is not None
        assert "retrun" in failed.compiled.stderr
    finally:
        runs.close()
