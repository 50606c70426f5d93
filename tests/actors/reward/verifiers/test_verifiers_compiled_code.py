"""Programs in compiled languages: compiled and run in the sandbox, by real compilers and in two calls."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers.compiled_code import CompiledCodeVerifier
from gleaner.actors.reward.verifiers.compiled_programs import Compiled, CompiledProgram, digest_of
from gleaner.actors.reward.verifiers.port import BadVerifier, NeedsTools, VerifierSpec
from gleaner.actors.reward.verifiers.registry import make
from tests.actors.reward.verifiers.verifier_modes import MODES, needs

if shutil.which("gcc") is None:
    pytest.skip("gcc is not installed here (apt install gcc libc6-dev)", allow_module_level=True)

DOUBLES = Entry(question="?", tests=tuple({"input": f"{n}\n", "output": f"{2 * n}"} for n in range(3)))
SECRET = "int the_secret_of_the_host;"
HEAD = "#include <stdio.h>\n"
RIGHT = HEAD + 'int main(void) { int n; scanf("%d", &n); printf("%d\\n", 2 * n); return 0; }'


def made(mode: str = "auto", *, language: str = "c", **params: object) -> CompiledCodeVerifier:
    compile_s = float(str(params.get("compile_s", 4.0)))
    params = {"language": language, "compile_s": compile_s, "deadline_s": 0.4, **params}
    spec = VerifierSpec(name="code", task="doubles", params=params, isolation=mode, deadline_s=compile_s + 2)
    verifier = make(spec)
    assert isinstance(verifier, CompiledCodeVerifier)
    verifier.clock = lambda: 0.0  # long enough to start all programs on a busy machine
    return verifier


def fenced(source: str, fence: str = "c") -> str:
    return f"Here it is:\n```{fence}\n{source}\n```\n"


def judged(verifier: CompiledCodeVerifier, source: str, fence: str = "c") -> Judgement:
    return verifier.score_all([(DOUBLES, fenced(source, fence))])[0]


@pytest.fixture(scope="module", params=MODES)
def verifier(request: pytest.FixtureRequest) -> Iterator[CompiledCodeVerifier]:
    needs(request.param)
    verifier = made(request.param)
    yield verifier
    verifier.close()


@pytest.fixture(scope="module", params=MODES)
def narrow(request: pytest.FixtureRequest) -> Iterator[CompiledCodeVerifier]:
    """Little of everything for a compilation, so that a bomb costs little."""
    needs(request.param)
    verifier = made(request.param, compile_s=0.5, compile_mb=64, output_mb=1)
    yield verifier
    verifier.close()


def test_right_program_passes_all_tests(verifier: CompiledCodeVerifier) -> None:
    found = judged(verifier, RIGHT)
    assert (found.score, found.status, found.detail) == (1.0, "ok", "")
    assert found.parts == {"passed": 3.0, "tests": 3.0}


ENDS = [
    ("int main(void) { return x; }", "compile_failed", "main.c:1:25: error: 'x' undeclared"),
    ("int f(void);\nint main(void) { return f(); }", "compile_failed", "undefined reference to `f'"),
    (HEAD + 'int main(void) { puts("0"); }', "ok", "test 2 of 3: another output: '0"),
    ("int main(void) { return 3; }", "crashed", "test 1 of 3: it raised exit code 3"),
    ("int main(void) { return *(volatile int *)0; }", "crashed", "signal 11 (SIGSEGV)"),
    ("int main(void) { for (;;) ; }", "timeout", "0.4 s of processor time"),
    ("#include <unistd.h>\nint main(void) { for (;;) pause(); }", "timeout", "still running after 0.8 s"),
    (HEAD + 'int main(void) { for (int n = 0; n < 1 << 19; n++) puts("xyz"); }', "output", "wrote too much"),
    (HEAD + 'int main(void) { for (;;) puts("xyz"); }', "output", "wrote too much: a file that is longer"),
    ("#include <string.h>\n#include <stdlib.h>\nint main(void) { char *p = malloc(1L << 30);\n"
     "return p ? !memset(p, 1, 1L << 30) : 9; }", "crashed", "exit code 9"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "status", "words"), ENDS, ids=range(len(ENDS)))
def test_wrong_program_scores_0_with_its_reason(
    verifier: CompiledCodeVerifier, source: str, status: str, words: str
) -> None:
    found = judged(verifier, source)
    assert (found.score, found.status) == (0.0, status), found
    assert words in found.detail.replace("‘", "'").replace("’", "'")


def test_last_block_of_the_language_is_the_source(verifier: CompiledCodeVerifier) -> None:
    response = fenced("int main(void) { }") + fenced(RIGHT, "C") + fenced("./a.out", "sh")
    assert verifier.score_all([(DOUBLES, response)])[0].score == 1.0
    assert verifier.score_all([(DOUBLES, fenced(RIGHT, ""))])[0].score == 1.0
    assert verifier.score_all([(DOUBLES, RIGHT)])[0].status == "no_answer"


@pytest.fixture
def secret() -> Iterator[Path]:
    file = Path("/var/tmp") / f"gleaner-compiled-{os.getpid()}"  # every user can read it
    file.write_text(SECRET)
    file.chmod(0o644)
    yield file
    file.unlink()


READS = [
    '#include "{}"\nint main(void) {{ return the_secret_of_the_host; }}',
    '__asm__(".incbin \\"{}\\"");\nint main(void) {{ return 0; }}',
    'int main(void) {{\n#if __has_include("{}")\nreturn 0;\n#else\n#error none\n#endif\n}}',
]


@pytest.mark.parametrize("attempt", READS, ids=range(len(READS)))
def test_compiler_reads_no_file_of_the_host(
    verifier: CompiledCodeVerifier, attempt: str, secret: Path, tmp_path: Path
) -> None:
    source = attempt.format(secret)
    plain = tmp_path / "main.c"
    plain.write_text(source)
    outside = subprocess.run(["gcc", "-o", tmp_path / "plain", plain], capture_output=True, check=False)
    assert outside.returncode == 0, outside.stderr  # the control: without the sandbox it is read
    found = verifier.stages.compile_response(DOUBLES, fenced(source))
    assert isinstance(found, Judgement), "the compiler read it"
    assert found.status == "compile_failed"
    assert SECRET not in found.detail


TEMPLATES = (
    "template<int N, int M> struct F { static const int v = F<N - 1, 2 * M>::v + F<N - 1, 2 * M + 1>::v; };\n"
    "template<int M> struct F<0, M> { static const int v = M; };\nint main() { return F<28, 0>::v; }"
)
BOMBS = [
    ("char a[10UL << 30] = {1};\nint main(void) { return a[5]; }", {"compile_failed", "output"}),
    ('#include "/dev/zero"\nint main(void) { return 0; }', {"memory", "compile_failed"}),
    ('__asm__(".rept 99999999\\n.long 1, 2, 3, 4\\n.endr");\nint main(void) { }',
     {"memory", "timeout", "output", "compile_failed"}),
    ("#include __FILE__\nint main(void) { }", {"compile_failed"}),
    ("char a[3 << 20] = {1};\nint main(void) { return a[5]; }", {"output", "compile_failed"}),
]  # fmt: skip


@pytest.mark.parametrize(("source", "statuses"), BOMBS, ids=range(len(BOMBS)))
def test_compile_time_bomb_ends_at_its_limit(
    narrow: CompiledCodeVerifier, source: str, statuses: set[str]
) -> None:
    found = judged(narrow, source)
    assert found.status in statuses, found
    assert judged(narrow, RIGHT).score == 1.0


def test_endless_compilation_is_a_timeout() -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed here (apt install g++)")
    verifier = made(language="c++", compile_s=0.5)
    found = judged(verifier, TEMPLATES, "cpp")
    verifier.close()
    assert (found.status, found.detail) == ("timeout", "its compilation: more than 0.5 s of processor time")


def test_program_reaches_no_file_and_no_socket(verifier: CompiledCodeVerifier, secret: Path) -> None:
    source = (
        "#include <stdio.h>\n#include <sys/socket.h>\n#include <unistd.h>\nint main(void) { int n;\n"
        f'if (fopen("{secret}", "r") || socket(AF_INET, SOCK_STREAM, 0) >= 0) return 9;\n'
        'if (fopen("/etc/passwd", "r") || fopen("main.c", "r")) return 8;\n'
        'scanf("%d", &n); printf("%d\\n", 2 * n); }'
    )
    assert judged(verifier, source).score == 1.0


def test_program_is_compiled_and_run_by_different_workers(verifier: CompiledCodeVerifier) -> None:
    compiled = verifier.stages.compile_response(DOUBLES, fenced(RIGHT))
    assert isinstance(compiled, Compiled)
    assert compiled.program.digest == digest_of(compiled.program.content)
    sent = msgspec.msgpack.encode(compiled)
    other = made()
    found = other.stages.run_compiled(DOUBLES, msgspec.msgpack.decode(sent, type=Compiled))
    assert (found.score, found.cpu_s > compiled.cpu_s) == (1.0, True)
    changed = CompiledProgram(content=compiled.program.content + b"x", digest=compiled.program.digest)
    assert other.stages.run_compiled(DOUBLES, Compiled(program=changed)).status == "verifier_failed"
    garbage = Compiled(program=CompiledProgram.of(b"no program of any machine"))
    assert other.stages.run_compiled(DOUBLES, garbage).status == "crashed"
    other.close()


def test_own_command_compiles_a_language_of_ones_own() -> None:
    command = ["gcc", "-x", "c", "-o", "{output}", "{source}"]
    verifier = made(language="tiny", compile=command, source="main.tiny", run=["{output}", "2"])
    source = HEAD + 'int main(int c, char **v) { int n; scanf("%d", &n); printf("%d", n * (*v[1] - 48)); }'
    assert judged(verifier, source, "tiny").score == 1.0
    verifier.close()


def test_missing_compiler_is_ours_at_the_start() -> None:
    verifier = made(language="tiny", compile=["no-such-cc", "{output}"], source="main.tiny")
    assert isinstance(verifier, NeedsTools)
    words = "no-such-cc is not installed here; install it, or name another command"
    assert verifier.missing() == words
    with pytest.raises(BadVerifier, match=f"task doubles: verifier code: {words}"):
        verifier.open()


def test_compiler_that_cannot_work_is_ours_at_the_start() -> None:
    verifier = made(compile=["gcc", "--no-such-option", "-o", "{output}", "{source}"])
    with pytest.raises(
        BadVerifier, match=r"compiles nothing inside the sandbox: compile_failed: .*no-such-opt"
    ):
        verifier.open()


@pytest.mark.parametrize(
    ("params", "words"),
    [({"language": "cobol"}, "expected one of python, c, c\\+\\+, rust, cuda, got 'cobol'"),
     ({"language": "c", "compile": ["gcc", "{source}"]}, "expected {output} among its words"),
     ({"language": "c", "compile_s": 1.0}, "set reward.deadline_s to 3 or more"),
     ({"language": "c", "source": "../main.c"}, "source"),
     ({"language": "c", "output_mb": 100}, "output_mb")],
)  # fmt: skip
def test_unusable_parameters_are_refused(params: dict[str, object], words: str) -> None:
    with pytest.raises(BadVerifier, match=words):
        make(VerifierSpec(name="code", task="doubles", params=params, deadline_s=1.0))


def test_tests_that_call_a_function_are_refused(verifier: CompiledCodeVerifier) -> None:
    calls = Entry(question="?", tests=({"call": "f", "args": [], "expected": 1},))
    assert "call a function of Python" in verifier.check(calls)
    assert verifier.check(DOUBLES) == ""
    assert verifier.score_all([(calls, fenced(RIGHT))])[0].status == "verifier_failed"


OTHERS = {
    "c++": "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << 2 * n; }",
    "rust": "fn main() { let mut s = String::new(); std::io::stdin().read_line(&mut s).unwrap();\n"
    'println!("{}", 2 * s.trim().parse::<i64>().unwrap()); }',
    "cuda": "#include <cstdio>\n__global__ void nothing() {}\n"
    'int main() { int n; scanf("%d", &n); printf("%d", 2 * n); }',
}


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("language", OTHERS)
def test_program_of_each_known_language_is_compiled(language: str, mode: str) -> None:
    needs(mode)
    verifier = made(mode, language=language, compile_s=20.0)
    if missing := verifier.missing():
        pytest.skip(missing)
    found = judged(verifier, OTHERS[language], language)
    verifier.close()
    assert (found.score, found.status, found.detail) == (1.0, "ok", "")
