"""`FunctionVerifier`: verifier `python`, a user's function in a sandbox.

This is the trusted end. The function reads responses as data, so they share a process, one after the other. A
response with which that process ends, unless it took too long, is tried once more in a process of its own. A
function that runs responses (setting `runs_responses`) gets a process for each.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from gleaner.actors.reward import verdicts
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.sandbox.detection import detect
from gleaner.actors.reward.sandbox.host_end import HostSandbox
from gleaner.actors.reward.sandbox.port import Limits, Outcome, Sandbox, Status, Work
from gleaner.actors.reward.sandbox.program_pipes import SandboxFailed
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers import function_calls, timed_scoring
from gleaner.actors.reward.verifiers.call_forms import MAX_NAME, MAX_PARTS
from gleaner.actors.reward.verifiers.function_sources import TooManySources, sources
from gleaner.actors.reward.verifiers.own_function import item_of
from gleaner.actors.reward.verifiers.port import BadVerifier, Trial, Verifier, VerifierSpec
from gleaner.configs.schema import Function

STAYING = Limits(cpu_s=3600.0, wall_s=7 * 86_400.0, memory_bytes=2**30)
"""Limits of the process that responses share, over all of them."""
MAX_DETAIL = 500
ENDS_OF_FUNCTIONS = frozenset({Status.CRASHED, Status.FORBIDDEN})
"""Ends that no response can cause in a process that only reads it: the function caused them."""


class FunctionOutput(msgspec.Struct, frozen=True):
    """The function's output for a response, from the sandbox."""

    score: float = 0.0
    parts: dict[str, float] = {}
    failed: str = ""
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FunctionLocation:
    """The place of a function: "module:function", the folder to import from, files that it may read."""

    call: str
    folder: str
    reads: tuple[str, ...]

    @property
    def module(self) -> str:
        return self.call.partition(":")[0]


def settings_of(spec: VerifierSpec) -> Function:
    """The settings of a function from a verifier's parameters. Raises BadVerifier."""
    try:
        found = msgspec.convert({"deadline_s": spec.deadline_s, **spec.params}, Function)
    except msgspec.ValidationError as error:
        raise BadVerifier(f"task {spec.task}: reward.function: {error}") from None
    if not found.call:
        raise BadVerifier(
            f"task {spec.task}: reward.function.call is empty: set it to module:function, for example "
            'call = "my_rewards:score"'
        )
    return found


def place_of(settings: Function) -> FunctionLocation:
    """The place of the settings' function."""
    folder = Path(settings.path).resolve()
    return FunctionLocation(
        settings.call, str(folder), tuple(str(folder / Path(one)) for one in settings.reads)
    )


def make(spec: VerifierSpec) -> Verifier:
    """The verifier of the settings: in a sandbox, or trusted. Raises BadVerifier."""
    settings = settings_of(spec)
    if settings.trusted:
        from gleaner.actors.reward.verifiers.trusted_functions import TrustedFunction

        return TrustedFunction(settings)
    return FunctionVerifier(settings, spec.isolation)


class FunctionVerifier:
    """A `Verifier`; the parameters are the settings `[reward.function]`."""

    def __init__(
        self, settings: Function, isolation: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._place, self._style, self._alone = place_of(settings), settings.style, settings.runs_responses
        self._limits = Limits(
            cpu_s=settings.deadline_s, wall_s=2 * settings.deadline_s, memory_bytes=STAYING.memory_bytes
        )
        self._isolation, self._clock = isolation, clock
        self._sandbox: Sandbox | None = None

    def open(self) -> None:
        """Start the sandbox and import the function. Raises `NoSandbox`, `SandboxFailed`, `BadVerifier`."""
        place = self._place
        for path in place.reads:
            if not Path(path).exists():
                raise BadVerifier(f"reward.function.reads: {path}: no such file or folder")
        try:
            readable = [*sources(place.module, place.folder), *place.reads]
        except TooManySources as problem:
            raise BadVerifier(f"reward.function: {problem}") from None
        settings = {"call": place.call, "folder": place.folder, "style": self._style}
        sandbox = HostSandbox(
            detect(self._isolation), [(function_calls.PREPARE, settings)], readable=readable
        )
        try:
            sandbox.start()
            description = sandbox.run(Work(function=function_calls.DESCRIBE, payload=b""))
        except SandboxFailed:
            sandbox.close()
            raise
        if description.status is not Status.OK or description.result:
            sandbox.close()
            if description.status is not Status.OK:
                raise SandboxFailed(description.detail)
            raise BadVerifier(f"reward.function: {description.result.decode('utf-8', 'replace')}")
        self._sandbox = sandbox

    def close(self) -> None:
        """End the sandbox, if there is one."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def check(self, entry: Entry) -> str:
        """See `Verifier`: any problem will do."""
        return ""

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        """See `Verifier`: the function's result for each, any finite number. Those that are not begun in time
        are `NOT_REACHED`.

        Any other result or error of the function is a failure of the verifier, and so is the end of its
        process, unless it runs the contents of responses. More processor time, memory or output than the
        limits, on one response alone, is that response's fault: it causes the function's work."""
        self._ready()
        return timed_scoring.judged(
            items, lambda item: self._judged(item_for(*item)), self._limits.cpu_s, self._clock
        )

    def try_one(self, entry: Entry, response: str) -> Trial:
        """See `Tries`: in a process of its own."""
        outcome = self._ready().run(self._work({**item_for(entry, response), "watched": True}))
        output = _read(outcome)
        return Trial(
            judgement=self._judgement(outcome, output),
            printed=(outcome.stdout + outcome.stderr).decode("utf-8", "replace"),
            refused=output.refused if output else (),
        )

    def _judged(self, item: dict[str, object]) -> Judgement:
        sandbox, work = self._ready(), self._work(item)
        late = f"more than {self._limits.cpu_s:g} s of processor time"
        if not self._alone:
            outcome = sandbox.ask(replace(work, limits=STAYING, each_s=self._limits.cpu_s))
            output = _read(outcome)
            if output is not None or outcome.status is Status.TIMEOUT:
                return self._judgement(replace(outcome, detail=late, cpu_s=0.0), output)
        outcome = sandbox.run(work)
        return self._judgement(outcome, _read(outcome))

    def _ready(self) -> Sandbox:
        if self._sandbox is None:
            self.open()
        assert self._sandbox is not None
        return self._sandbox

    def _work(self, item: dict[str, object]) -> Work:
        payload = json.dumps(item).encode()
        return Work(function=function_calls.FUNCTION, payload=payload, limits=self._limits)

    def _judgement(self, outcome: Outcome, output: FunctionOutput | None) -> Judgement:
        if output is None:
            return self._ended(outcome)
        if output.failed:
            return Judgement(0.0, verdicts.VERIFIER_FAILED, output.failed[:MAX_DETAIL], cpu_s=outcome.cpu_s)
        return Judgement(output.score, parts=output.parts, cpu_s=outcome.cpu_s)

    def _ended(self, outcome: Outcome) -> Judgement:
        """The judgement from the end of a process that had one response alone."""
        if outcome.status is Status.OK:
            detail = f"what came out of the sandbox is no result: {outcome.result[:80]!r}"
            outcome = replace(outcome, status=Status.CRASHED, detail=detail)
        if outcome.status in ENDS_OF_FUNCTIONS and not self._alone:
            text = f"{self._place.call}: its process ended: {outcome.detail}"[:MAX_DETAIL]
            return Judgement(0.0, verdicts.VERIFIER_FAILED, text, cpu_s=outcome.cpu_s)
        return verdicts.of_failure(outcome)


def item_for(entry: Entry, response: str) -> dict[str, object]:
    """The arguments of a function for a response and its problem."""
    messages = [{"role": one.role, "content": one.content} for one in entry.messages]
    return item_of(entry.question, messages, response, entry.answer, entry.info)


def _read(outcome: Outcome) -> FunctionOutput | None:
    """The output, read strictly; None if it is not valid."""
    if outcome.status is not Status.OK:
        return None
    try:
        output = msgspec.json.decode(outcome.result, type=FunctionOutput)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    sound = len(output.parts) <= MAX_PARTS and all(len(name) <= MAX_NAME for name in output.parts)
    return output if sound else None
