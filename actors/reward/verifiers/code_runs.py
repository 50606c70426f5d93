"""CodeRuns: runs programs of clients in a sandbox, and gives their output. Scores nothing.

Owns the languages and the limits. A failure of the sandbox raises; all that a program does is its result.
"""

import msgspec

from gleaner.actors.protocol.reward import CommandRun
from gleaner.actors.reward import pipe
from gleaner.actors.reward.sandbox.port import Limits, Outcome, Status, Work
from gleaner.actors.reward.verdicts import COMPILE_FAILED, OURS, Judgement
from gleaner.actors.reward.verifiers import command_runs, compilers
from gleaner.actors.reward.verifiers.compiled_programs import PROGRAM, CompiledPrograms, CompiledWork
from gleaner.actors.reward.verifiers.compilers import LANGUAGES, NoCompiler
from gleaner.actors.reward.verifiers.grading import Grading
from gleaner.actors.reward.verifiers.plain_runs import PlainResult, PlainWork
from gleaner.actors.reward.verifiers.programs import FILE_BYTES, USUAL
from gleaner.actors.reward.verifiers.sandboxed import Sandboxed

INSIDE = "gleaner.actors.reward.verifiers.plain_runs"
PYTHON = "python"
NAMES = {"python": PYTHON, "py": PYTHON, "python3": PYTHON, "cpp": "c++", "c++": "c++", "c": "c"}
"""Languages by the names that clients have for them."""
FINISHED, ERROR, LATE = "Finished", "Error", "TimeLimitExceeded"
MB = 2**20
PROGRAM_BYTES = 16 * MB
RESULT_BYTES = 4 * MB
SLACK_S = 1.0
"""Wall and processor seconds beyond those of the program, for what runs it."""

_results: msgspec.msgpack.Decoder[PlainResult] = msgspec.msgpack.Decoder(PlainResult)


def missing(language: str) -> str:
    """Why programs of one of `NAMES` cannot be run here, "" if they can."""
    if NAMES[language] == PYTHON:
        return ""
    known = LANGUAGES[NAMES[language]]
    try:
        compilers.found(known.compile, remedy=known.remedy)
    except NoCompiler as problem:
        return str(problem)
    return ""


class CodeRuns(Sandboxed):
    """See the module. isolation: of the sandbox."""

    def __init__(self, isolation: str) -> None:
        super().__init__(isolation, [INSIDE, command_runs.__name__, *USUAL])

    def run(self, asked: pipe.RunItem) -> pipe.RunOut:
        """Compile it, where its language is compiled, and run it. Raises `NoSandbox`, `SandboxFailed`,
        `NoCompiler`, RuntimeError."""
        language = NAMES[asked.language]
        given = asked.stdin.encode("utf-8", "surrogatepass")
        if language == PYTHON:
            return pipe.RunOut(self._run(PlainWork(source=asked.code, given=given, run_s=asked.run_s)))
        compiled = self._compiler(language, asked.compile_s).compile_source(asked.code)
        if isinstance(compiled, Judgement):
            if compiled.status in OURS:
                raise RuntimeError(f"{compiled.status}: {compiled.detail}")
            return pipe.RunOut(None, _not_compiled(compiled))
        work = PlainWork(
            files={PROGRAM: compiled.program.content}, command=[PROGRAM], given=given, run_s=asked.run_s
        )
        built = CommandRun(status=FINISHED, execution_time=compiled.cpu_s, return_code=0)
        return pipe.RunOut(self._run(work), built)

    def _run(self, work: PlainWork) -> CommandRun:
        limits = Limits(
            cpu_s=2 * work.run_s + 2 * SLACK_S,
            wall_s=work.run_s + SLACK_S,
            file_bytes=FILE_BYTES,
            result_bytes=RESULT_BYTES,
        )
        payload = msgspec.msgpack.encode(work)
        return _ran(self.sandbox.run(Work(function=f"{INSIDE}:run", payload=payload, limits=limits)))

    def _compiler(self, language: str, compile_s: float) -> CompiledPrograms:
        known = LANGUAGES[language]
        limits = Limits(
            cpu_s=compile_s,
            wall_s=2 * compile_s,
            memory_bytes=1024 * MB,
            address_bytes=4096 * MB,
            processes=64,
            open_files=256,
            file_bytes=3 * PROGRAM_BYTES,
            tmp_bytes=6 * PROGRAM_BYTES,
            result_bytes=PROGRAM_BYTES + RESULT_BYTES,
        )
        work = CompiledWork(
            fences=(),
            prelude="",
            source=known.source,
            run=(),
            compiling=limits,
            running=limits,
            program_bytes=PROGRAM_BYTES,
            test_s=compile_s,
        )
        compiler = compilers.found(known.compile, remedy=known.remedy)
        return CompiledPrograms(work, compiler, Grading(True, 0.0), lambda: self.sandbox)


def _ran(outcome: Outcome) -> CommandRun:
    """What a program did. Raises RuntimeError for a failure of the sandbox."""
    if outcome.status is Status.SANDBOX_FAILED:
        raise RuntimeError(f"{outcome.status.value}: {outcome.detail}")
    if outcome.status is not Status.OK:
        status = LATE if outcome.status is Status.TIMEOUT else ERROR
        text = f"{outcome.status.value}: {outcome.detail}"
        return CommandRun(status=status, execution_time=outcome.wall_s, return_code=None, stderr=text)
    try:
        found = _results.decode(outcome.result)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        text = "it wrote over its result"
        return CommandRun(status=ERROR, execution_time=outcome.wall_s, return_code=None, stderr=text)
    return CommandRun(
        status=LATE if found.late else FINISHED,
        execution_time=outcome.wall_s,
        return_code=None if found.late else found.return_code,
        stdout=found.stdout.decode("utf-8", "replace"),
        stderr=found.stderr.decode("utf-8", "replace"),
    )


def _not_compiled(judged: Judgement) -> CommandRun:
    if judged.status == COMPILE_FAILED:
        return CommandRun(status=FINISHED, execution_time=judged.cpu_s, return_code=1, stderr=judged.detail)
    status = LATE if judged.status == Status.TIMEOUT.value else ERROR
    text = f"{judged.status}: {judged.detail}"
    return CommandRun(status=status, execution_time=judged.cpu_s, return_code=None, stderr=text)
