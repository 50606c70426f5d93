"""`CompiledCodeVerifier`: verifier `code` of programs in compiled languages: compile a response, then run it.

Owns the parameters and the search for the compiler. The two stages are `compiled_programs`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import msgspec

from gleaner.actors.reward.carried import Carried
from gleaner.actors.reward.case_limits import CaseLimits
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.sandbox import gpus
from gleaner.actors.reward.sandbox.port import Limits
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers import compiled_times, compilers, params
from gleaner.actors.reward.verifiers.cases import BadTests
from gleaner.actors.reward.verifiers.compiled_programs import (
    INSIDE,
    Compiled,
    CompiledProgram,
    CompiledPrograms,
    CompiledWork,
    source_of,
    stdin_cases,
)
from gleaner.actors.reward.verifiers.compilers import LANGUAGES, OUTPUT, Compiler, NoCompiler
from gleaner.actors.reward.verifiers.port import BadVerifier, Trial, VerifierSpec
from gleaner.actors.reward.verifiers.programs import FILE_BYTES, RESULT_BYTES, ProgramParams
from gleaner.actors.reward.verifiers.sandboxed import Sandboxed

MB = 2**20
MAX_OUTPUT_MB = 24
"""A program travels to the sandbox with all inputs, in one frame."""
MAPPED = 4
"""A compiler maps more memory than it uses: so many times its limit."""
FILES = 3
"""Files of a compilation that may each be as large as the program: assembly, object, program."""
PROCESSES = 64
RUN = "run"
"""The stage that needs no compiler."""
_NO_COMPILER = Compiler(command=())
_Words = Annotated[list[str], msgspec.Meta(max_length=64)]


class CompiledParams(ProgramParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """language: of the known ones, or any name where `compile` is given; the word behind the fence of a
    block. compile: words of the compiler's command, with {source} and {output} for the names of its files.
    run: those of the program's. source: name of the source's file. reads: folders outside of the system's
    that the compiler reads. compile_s: processor time of one compilation; compile_mb: its memory; output_mb:
    the largest program. gpu: programs may use the GPUs of their host, and so its kernel driver."""

    language: str
    compile: _Words = []
    run: _Words = msgspec.field(default_factory=lambda: [OUTPUT])
    source: Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?\Z")] = ""
    reads: list[str] = []
    compile_s: Annotated[float, msgspec.Meta(gt=0)] = compiled_times.COMPILE_S
    compile_mb: Annotated[int, msgspec.Meta(ge=64, le=2**16)] = 1024
    output_mb: Annotated[int, msgspec.Meta(ge=1, le=MAX_OUTPUT_MB)] = 16
    gpu: bool = False


class CompiledCodeVerifier(Sandboxed):
    """A `Verifier`. `Entry.tests`: inputs and expected outputs of stdin, in the formats of `cases`."""

    def __init__(self, spec: VerifierSpec) -> None:
        found = self._params = params.read(spec, CompiledParams)
        self._where = f"task {spec.task}: verifier {spec.name}"
        known = LANGUAGES.get(found.language)
        if known is None and not (found.compile and found.source):
            names = ", ".join(["python", *LANGUAGES])
            raise BadVerifier(
                f"{self._where}: language: expected one of {names}, got {found.language!r}; another needs "
                "the parameters compile and source"
            )
        self._command = tuple(found.compile or (known.compile if known else ()))
        if not any(OUTPUT in word for word in self._command) or not found.run:
            raise BadVerifier(f"{self._where}: compile: expected {OUTPUT} among its words, and run not empty")
        self._remedy = known.remedy if known and not found.compile else ""
        self._trial = known.trial if known else ""
        self._run_s = self._time_to_run(spec)
        self._work = CompiledWork(
            fences=known.fences if known else (found.language.lower(),),
            prelude=found.prelude,
            source=found.source or (known.source if known else ""),
            run=tuple(found.run),
            compiling=self._compiling(),
            running=self._running(),
            program_bytes=found.output_mb * MB,
            test_s=min(found.test_s or self._run_s, self._run_s),
            environment=gpus.environment() if found.gpu else {},
        )
        self._has_gpu = found.gpu
        self._stages: CompiledPrograms | None = None
        super().__init__(spec.isolation, [INSIDE])

    def _time_to_run(self, spec: VerifierSpec) -> float:
        """Processor time of a program: what the compilation leaves of the job's, or less. Raises
        `BadVerifier`."""
        compile_s, own_s = self._params.compile_s, self._params.deadline_s
        wanted_s = compile_s + (own_s or 0.0)
        if wanted_s > spec.deadline_s or (own_s is None and wanted_s == spec.deadline_s):
            and_s = f"deadline_s {own_s:g}" if own_s is not None else "the program's own time"
            raise BadVerifier(
                f"{self._where}: compile_s is {compile_s:g}, and with {and_s} that is more than the "
                f"{spec.deadline_s:g} s that workers have: set reward.deadline_s to "
                f"{compile_s + (own_s or 2.0):g} or more"
            )
        return compiled_times.run_s(spec.deadline_s, compile_s, own_s)

    def _running(self) -> Limits:
        own = Limits(
            cpu_s=self._run_s,
            wall_s=2 * self._run_s,
            memory_bytes=self._params.memory_mb * MB,
            file_bytes=FILE_BYTES,
            result_bytes=RESULT_BYTES,
        )
        if not self._params.gpu:
            return own
        return replace(
            own, address_bytes=gpus.ADDRESS_BYTES, processes=gpus.PROCESSES, open_files=gpus.OPEN_FILES
        )

    def _compiling(self) -> Limits:
        found = self._params
        return Limits(
            cpu_s=found.compile_s,
            wall_s=2 * found.compile_s,
            memory_bytes=found.compile_mb * MB,
            address_bytes=MAPPED * found.compile_mb * MB,
            processes=PROCESSES,
            open_files=256,
            file_bytes=FILES * found.output_mb * MB,
            tmp_bytes=2 * FILES * found.output_mb * MB,
            result_bytes=found.output_mb * MB + RESULT_BYTES,
        )

    def open(self) -> None:
        """See `Verifier`: with a compilation of a trial source, where the language is known."""
        try:
            compiler = compilers.found(self._command, self._params.reads, self._remedy)
        except NoCompiler as problem:
            raise BadVerifier(f"{self._where}: {problem}") from None
        self.readable = compiler.readable
        self._find_gpus()
        super().open()
        self._stages = CompiledPrograms(self._work, compiler, self._params.grading, lambda: self.sandbox)
        if self._trial:
            tried = self._stages.compile_source(self._trial)
            if isinstance(tried, Judgement):
                self.close()
                raise BadVerifier(
                    f"{self._where}: {compiler.command[0]} compiles nothing inside the sandbox: "
                    f"{tried.status}: {tried.detail}"
                )

    def _find_gpus(self) -> None:
        """Have the devices of this host's GPUs, where programs run on them. Raises `BadVerifier`."""
        self.devices = gpus.devices() if self._has_gpu else ()
        if self._has_gpu and not self.devices:
            raise BadVerifier(
                f"{self._where}: gpu: this host has no GPU (/dev/nvidia0); have its programs run on reward "
                "hosts that have one (reward.stages.run)"
            )

    def missing(self) -> str:
        """See `NeedsTools`."""
        try:
            compilers.found(self._command, self._params.reads, self._remedy)
        except NoCompiler as problem:
            return str(problem)
        return ""

    @property
    def stages(self) -> CompiledPrograms:
        """The two stages, which the first use starts. Raises as `open`."""
        if self._stages is None:
            self.open()
        assert self._stages is not None
        return self._stages

    def check(self, entry: Entry) -> str:
        """See `Verifier`."""
        try:
            stdin_cases(entry)
        except BadTests as problem:
            return str(problem)
        return ""

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        """See `Verifier`: each response is compiled, then run with the inputs of all tests."""
        stages = self.stages

        def judge(item: tuple[Entry, str]) -> Judgement:
            entry, response = item
            compiled = stages.compile_response(entry, response)
            return stages.run_compiled(entry, compiled) if isinstance(compiled, Compiled) else compiled

        return self.judged(items, judge, self._params.compile_s + self._run_s)

    def open_stage(self, stage: str) -> None:
        """See `Staged`: a host that runs programs needs no compiler."""
        if stage != RUN:
            self._has_gpu = False
            self.open()
            return
        self._find_gpus()
        super().open()
        self._stages = CompiledPrograms(self._work, _NO_COMPILER, self._params.grading, lambda: self.sandbox)

    def score_stage(
        self, stage: str, entry: Entry, response: str, carried: Carried, limits: CaseLimits | None
    ) -> Judgement | Carried:
        """See `Staged`: compile, then run."""
        if stage == RUN:
            compiled = Compiled(
                program=CompiledProgram(content=carried.program, digest=carried.digest), cpu_s=carried.cpu_s
            )
            return self.stages.run_compiled(entry, compiled)
        found = self.stages.compile_response(entry, response)
        if isinstance(found, Judgement):
            return found
        return Carried(program=found.program.content, digest=found.program.digest, cpu_s=found.cpu_s)

    def try_one(self, entry: Entry, response: str) -> Trial:
        """See `Tries`."""
        (judged,) = self.score_all([(entry, response)])
        return Trial(judgement=judged, read=source_of(response, self._work.fences) or "")
