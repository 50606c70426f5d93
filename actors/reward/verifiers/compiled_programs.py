"""`TwoStages`: port of a verifier whose responses are compiled, then run; and its sandboxed adapter.

The two calls are separate because they may be made by different workers on different hosts: what they share
is a `CompiledProgram`, which is bytes with their hash. The compiler reads what a model wrote, so it runs in
the sandbox like the program. The expected output stays at this end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from gleaner.actors.reward import verdicts
from gleaner.actors.reward.carried import digest_of
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.sandbox.port import Limits, Outcome, Sandbox, Status, Work
from gleaner.actors.reward.verdicts import COMPILE_FAILED, NO_ANSWER, OK, VERIFIER_FAILED, Judgement
from gleaner.actors.reward.verifiers import compilers, responses
from gleaner.actors.reward.verifiers.cases import BadTests, Case, cases_of
from gleaner.actors.reward.verifiers.command_runs import NO_COMMAND, CommandResults, CommandWork
from gleaner.actors.reward.verifiers.compilers import Compiler
from gleaner.actors.reward.verifiers.grading import Grading

INSIDE = "gleaner.actors.reward.verifiers.command_runs"
PROGRAM = "./program"
MAX_MESSAGE = 2000
"""Characters of a compiler's message that are kept: its first errors."""

_results: msgspec.msgpack.Decoder[CommandResults] = msgspec.msgpack.Decoder(CommandResults)


class CompiledProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program as bytes, for any host. digest: blake2b of 16 bytes, as hex."""

    content: bytes
    digest: str

    @staticmethod
    def of(content: bytes) -> "CompiledProgram":
        """The program with its digest."""
        return CompiledProgram(content=content, digest=digest_of(content))

    @property
    def intact(self) -> bool:
        """Whether the digest is that of the bytes."""
        return self.digest == digest_of(self.content)


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """A response that was compiled. cpu_s: processor seconds of that."""

    program: CompiledProgram
    cpu_s: float = 0.0


class TwoStages(Protocol):
    """See the module. Neither call raises anything: a failure is a judgement."""

    def compile_response(self, entry: Entry, response: str) -> Compiled | Judgement:
        """The program of a response, or why there is none."""

    def run_compiled(self, entry: Entry, compiled: Compiled) -> Judgement:
        """The judgement of a program by the tests of its problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledWork:
    """How responses of one task are compiled and run.

    fences: words behind the fence of a block. prelude: source before each. source: name of its file. run:
    words of the command. compiling, running: limits of the two. program_bytes: the largest program. test_s:
    processor time of one test. environment: of the program, beside the usual.
    """

    fences: tuple[str, ...]
    prelude: str
    source: str
    run: tuple[str, ...]
    compiling: Limits
    running: Limits
    program_bytes: int
    test_s: float
    environment: Mapping[str, str] = field(default_factory=dict)


class CompiledPrograms:
    """A `TwoStages` of one sandbox. sandbox: gives it, started; it raises what its start raises."""

    def __init__(
        self, work: CompiledWork, compiler: Compiler, grading: Grading, sandbox: Callable[[], Sandbox]
    ) -> None:
        self._work, self._compiler, self._grading, self._sandbox = work, compiler, grading, sandbox
        self._known: tuple[Entry, list[Case]] | None = None

    def compile_response(self, entry: Entry, response: str) -> Compiled | Judgement:
        """See `TwoStages`: the last block of the language, else the last block, is the source."""
        source = source_of(response, self._work.fences)
        if source is None:
            return Judgement(0.0, NO_ANSWER, "it holds no closed block between ``` fences")
        prelude = self._work.prelude
        return self.compile_source(f"{prelude}\n{source}" if prelude else source)

    def compile_source(self, source: str) -> Compiled | Judgement:
        """The program of a source."""
        work, limits = self._work, self._work.compiling
        outcome = self._run(
            CommandWork(
                files={work.source: source.encode("utf-8", "replace")},
                command=compilers.words(self._compiler.command, work.source, PROGRAM),
                environment=dict(self._compiler.environment),
                inputs=[b""],
                test_s=limits.cpu_s,
                trusted=True,
                take=PROGRAM,
                take_bytes=work.program_bytes,
            ),
            limits,
        )
        if outcome.status is not Status.OK:
            return _while_compiled(verdicts.of_failure(outcome))
        found = _read(outcome)
        if found is None or len(found.results) != 1:
            return _while_compiled(
                Judgement(0.0, Status.CRASHED.value, "it wrote over its result", cpu_s=outcome.cpu_s)
            )
        return self._compiled(found, outcome.cpu_s)

    def _compiled(self, found: CommandResults, cpu_s: float) -> Compiled | Judgement:
        ((kind, text, _),) = found.results
        if kind == NO_COMMAND:
            return Judgement(0.0, VERIFIER_FAILED, text)
        if kind == "timeout":
            return _while_compiled(
                Judgement(
                    0.0, Status.TIMEOUT.value, f"more than {self._work.compiling.cpu_s:g} s", cpu_s=cpu_s
                )
            )
        if kind == "too long":
            return _while_compiled(Judgement(0.0, Status.OUTPUT.value, text, cpu_s=cpu_s))
        if kind != "text":
            message = found.errors[:MAX_MESSAGE] or text
            return Judgement(0.0, COMPILE_FAILED, message, cpu_s=cpu_s)
        if found.taken_bytes > self._work.program_bytes:
            text = f"a program of {found.taken_bytes} bytes, at most {self._work.program_bytes}"
            return _while_compiled(Judgement(0.0, Status.OUTPUT.value, text, cpu_s=cpu_s))
        if not found.taken:
            return Judgement(0.0, COMPILE_FAILED, "the compiler wrote no program", cpu_s=cpu_s)
        return Compiled(program=CompiledProgram.of(found.taken), cpu_s=cpu_s)

    def run_compiled(self, entry: Entry, compiled: Compiled) -> Judgement:
        """See `TwoStages`."""
        work, program = self._work, compiled.program
        if not program.intact:
            return Judgement(0.0, VERIFIER_FAILED, "the compiled program is not the one that was made")
        try:
            cases = self._cases(entry)
        except BadTests as problem:
            return Judgement(0.0, VERIFIER_FAILED, str(problem))
        outcome = self._run(
            CommandWork(
                files={PROGRAM: program.content},
                command=compilers.words(work.run, work.source, PROGRAM),
                environment=dict(work.environment),
                inputs=[str(case.given).encode("utf-8", "surrogatepass") for case in cases],
                test_s=work.test_s,
                stop=self._grading.whole,
            ),
            work.running,
        )
        cpu_s = compiled.cpu_s + outcome.cpu_s
        if outcome.status is not Status.OK:
            return replace(verdicts.of_failure(outcome), cpu_s=cpu_s)
        found = _read(outcome)
        if found is None:
            return Judgement(0.0, Status.CRASHED.value, "it wrote over its result", cpu_s=cpu_s)
        return self._grading.judgement(cases, found.results, cpu_s)

    def _cases(self, entry: Entry) -> list[Case]:
        """The tests of a problem, kept for the responses to the same one. Raises `BadTests`."""
        if self._known is None or self._known[0] is not entry:
            self._known = entry, stdin_cases(entry)
        return self._known[1]

    def _run(self, work: CommandWork, limits: Limits) -> Outcome:
        payload = msgspec.msgpack.encode(work)
        return self._sandbox().run(Work(function=f"{INSIDE}:run", payload=payload, limits=limits))


def stdin_cases(entry: Entry) -> list[Case]:
    """The tests of a problem for a program that reads stdin. Raises `BadTests`."""
    cases = cases_of(entry.tests, entry.info)
    if any(case.call for case in cases):
        raise BadTests("its tests call a function of Python; a compiled program needs input and output")
    return cases


def source_of(response: str, fences: tuple[str, ...]) -> str | None:
    """The source in a response: its last closed block with one of these words behind its fence, else its last
    closed block."""
    found = responses.blocks(responses.after_thinking(response))
    named = [one for one in found if one.language in fences]
    last = (named or found)[-1:]
    return last[0].content if last else None


def _read(outcome: Outcome) -> CommandResults | None:
    """What a run returned; None if it is something else."""
    try:
        return _results.decode(outcome.result)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _while_compiled(judged: Judgement) -> Judgement:
    """The judgement with a text that names the stage."""
    return judged if judged.status == OK else replace(judged, detail=f"its compilation: {judged.detail}")
