"""SimScorer: modelled verifier processes, with latency and faults.

Owns the port `gleaner.actors.reward.scoring.ScoringWorker` without a process. A problem's prompt is a
function of (split, index), a score of the problem and the response's tokens: scoring again gives the same.
Each problem has its own chance of a right answer, so groups differ in their rewards. The chance may fall with
the length of the response, as long answers of real models are wrong more often.

Faults, drawn for each item or ordered from outside: a worker that hangs (no answer until the deadline), one
that crashes, one that sends false answers (no frame, or of the wrong kind, or with the wrong score). Or,
while the verifier fails, every score ends in the same fault.
"""

import asyncio
import hashlib
import math
import random
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from gleaner.actors.reward import pipe
from gleaner.actors.reward.blobs import Blobs, NoBlob
from gleaner.actors.reward.carried import Carried, CarriedScore, digest_of, packed, unpacked
from gleaner.actors.reward.scoring import WorkerDied, WorkerHung, WorkerSpec
from gleaner.actors.reward.stages import COMPILE, JUDGE, RUN, SCORE
from gleaner.actors.reward.verdicts import BLOB_LOST, OVERLOADED, UNAVAILABLE
from gleaner.sim.models.scored_texts import response_of, text_of
from gleaner.sim.models.tokens import response

LARGE_ONE_IN = 2
"""Programs that are a blob of their host."""
MEDIAN_S = 0.002
"""Median time of one score by rule-based verifiers."""


class Fault(StrEnum):
    """Action of a worker instead of an answer."""

    HANG = "hang"
    CRASH = "crash"
    GARBAGE = "garbage"
    WRONG_KIND = "wrong_kind"
    WRONG_SCORE = "wrong_score"
    RAISE = "raise"  # instead of a score; problems are still returned
    JUDGE_AWAY = "judge_away"  # the judge of a stage cannot be reached; all other work goes on


@dataclass(frozen=True, slots=True)
class ScorerLaw:
    """Seconds to start and to score (median and sigma of a log-normal), and chances of faults per item.

    The default latency is that of rule-based verifiers; a compiler takes a minute. prompt_rows: shortest and
    longest prompt, in tokens of a message. halving_rows: see `Problems`.
    """

    start_s: float = 1.0
    median_s: float = MEDIAN_S
    sigma: float = 0.5
    prompt_rows: tuple[int, int] = (16, 64)
    chances: tuple[tuple[Fault, float], ...] = ()
    halving_rows: float = math.inf


@dataclass(slots=True)
class ScorerFaults:
    """Ordered faults, on top of the law's chances: the next items of a host take one each. `done`: how many
    of each kind happened, ordered or drawn. `standing`: the fault of every score; problems are unaffected.
    `on_score`: called with each item that a verifier has scored, before its answer leaves."""

    standing: Fault | None = None
    done: dict[Fault, int] = field(default_factory=dict)
    on_score: Callable[[pipe.ScoreItem], None] = lambda item: None
    _ordered: deque[tuple[Fault, Callable[[], None]]] = field(default_factory=deque)

    def order(self, fault: Fault, came: Callable[[], None] = lambda: None) -> None:
        """One more; `came` is called when it happens."""
        self._ordered.append((fault, came))

    def take(self) -> Fault | None:
        """The next ordered fault: it happens now."""
        if not self._ordered:
            return None
        fault, came = self._ordered.popleft()
        came()
        return fault

    def note(self, fault: Fault) -> None:
        """It came."""
        self.done[fault] = self.done.get(fault, 0) + 1


@dataclass(frozen=True, slots=True)
class Problems:
    """Prompts and scores, by hash. `seed`: of the job; `vocabulary`: of the prompt's tokens. `halving_rows`:
    tokens of a message with which a response loses half of its chance of being right; inf: its length does
    not matter. Raises ValueError for one that is not positive."""

    seed: int
    vocabulary: int
    prompt_rows: tuple[int, int]
    halving_rows: float = math.inf

    def __post_init__(self) -> None:
        if not self.halving_rows > 0:
            raise ValueError(f"halving_rows: expected more than 0 tokens, got {self.halving_rows:g}")

    def prompt(self, split: str, index: int) -> list[int]:
        """The prompt of a problem."""
        shortest, longest = self.prompt_rows
        name = _number(f"{self.seed}/{split}/{index}".encode())
        count = shortest + name % (longest - shortest + 1)
        return [int(token) for token in response(name, count, self.vocabulary)]

    def score(self, split: str, index: int, tokens: list[int]) -> float:
        """1.0 with the problem's own chance, less what the length takes from it, else 0.0; the same for the
        same tokens."""
        name = f"{self.seed}/{split}/{index}".encode()
        chance = _number(name + b"/chance") / 2**64 * 0.5 ** (len(tokens) / self.halving_rows)
        return float(_number(name + array("I", tokens).tobytes()) / 2**64 < chance)


class SimScorer:
    """See the module. Times are of the running loop.

    Args:
        problems: the problems that are scored.
        law: latency and chances of faults.
        rng: draws of this worker.
        faults: ordered faults, and the count of all.
        blobs: of its host, where items pass several stages.
        spec: what the worker was started with: its task, and whether a judge is beside that.
    """

    def __init__(
        self,
        problems: Problems,
        law: ScorerLaw,
        rng: random.Random,
        faults: ScorerFaults,
        blobs: Blobs | None = None,
        spec: WorkerSpec | None = None,
    ) -> None:
        spec = spec or WorkerSpec()
        self._problems, self._law, self._rng, self._faults = problems, law, rng, faults
        self._blobs, self._judged, self._task = blobs, _judged(spec), _task(spec)
        self._dead = False

    @staticmethod
    async def start(
        spec: WorkerSpec,
        problems: Problems,
        law: ScorerLaw,
        rng: random.Random,
        faults: ScorerFaults,
        blobs: Blobs | None = None,
    ) -> "SimScorer":
        """A worker that loaded its scorer. Raises `WorkerHung`."""
        if law.start_s > spec.start_s:
            await asyncio.sleep(spec.start_s)
            raise WorkerHung(f"no answer within {spec.start_s:g} s")
        await asyncio.sleep(law.start_s)
        return SimScorer(problems, law, rng, faults, blobs, spec)

    @property
    def dead(self) -> bool:
        """See `ScoringWorker`."""
        return self._dead

    async def ask(self, frame: bytes, deadline_s: float) -> pipe.Answer:
        """See `ScoringWorker`. Raises `WorkerHung` or `WorkerDied`."""
        if self._dead:
            raise WorkerDied("signal 9 (SIGKILL)")
        item = pipe.item(frame[pipe.PREFIX.size :])
        fault = self._fault(standing=not isinstance(item, pipe.ProblemItem))
        if fault is Fault.JUDGE_AWAY and not (isinstance(item, pipe.StageItem) and item.stage == JUDGE):
            fault = None
        count = len(item.items) if isinstance(item, pipe.ScoreItems) else 1
        # Words for tokens take what rule-based verifiers take, however long a verifier of this job does.
        median_s = MEDIAN_S if isinstance(item, pipe.ReadItem) else self._law.median_s
        takes_s = sum(self._takes_s(median_s) for _ in range(count))
        if fault is Fault.HANG or takes_s > deadline_s:
            await asyncio.sleep(deadline_s)
            raise WorkerHung(f"no answer within {deadline_s:g} s")
        await asyncio.sleep(takes_s)
        if fault is Fault.CRASH:
            self._dead = True
            raise WorkerDied("signal 11 (SIGSEGV)")
        if fault is Fault.GARBAGE:
            raise WorkerDied("it wrote garbage into its pipe: a frame of 1852139639 bytes is announced")
        if isinstance(item, pipe.ProblemItem):
            prompt = self._problems.prompt(item.split, item.index)
            if fault is Fault.WRONG_KIND:
                return pipe.ScoreOut(1.0)
            return pipe.ProblemOut(f"problem {item.index} of {item.split}", prompt)
        if fault is Fault.WRONG_KIND:
            return pipe.ProblemOut("", [])
        if isinstance(item, pipe.ReadItem) and fault is not Fault.RAISE:
            return pipe.ReadOut(text_of(self._task, item))
        if fault is Fault.RAISE or isinstance(item, pipe.RunItem | pipe.ReadItem):
            return pipe.Failed("ValueError: this verifier scores nothing")
        if isinstance(item, pipe.ScoreItems):
            return pipe.ScoresOut([self._score(one, fault) for one in item.items])
        if isinstance(item, pipe.StageItem):
            return self._stage(item, fault)
        return self._score(item, fault)

    def _stage(self, item: pipe.StageItem, fault: Fault | None) -> pipe.Answer:
        """One stage. A program belongs to its problem and response; one in two is too large to travel with
        its item. What reaches a stage must be what the stages before made of this very item."""
        program = program_of(item.item)
        if item.stage == COMPILE:
            large = program[0] % LARGE_ONE_IN == 0
            digest = digest_of(program)
            try:
                if large and self._blobs is not None:
                    self._blobs.put(program)
            except OSError as problem:
                return pipe.ScoreOut(0.0, OVERLOADED, str(problem))
            return pipe.PassedOut(packed(Carried(program=b"" if large else program, digest=digest)))
        carried = unpacked(item.carried) if item.carried else Carried()
        if item.stage == RUN:
            try:
                found = carried.program
                if carried.blob and self._blobs is not None:
                    found = self._blobs.read(carried.blob)
            except NoBlob as problem:
                return pipe.ScoreOut(0.0, BLOB_LOST, str(problem))
            if found != program:
                return pipe.Failed("it got the program of another response")
        if fault is Fault.JUDGE_AWAY:
            return pipe.ScoreOut(0.0, UNAVAILABLE, "the judge cannot be reached")
        if item.stage == JUDGE:
            own = carried.own
            return self._score(item.item, fault) if own is not None else pipe.Failed("it got no score")
        if self._judged and item.stage in (RUN, SCORE):
            return pipe.PassedOut(packed(Carried(own=CarriedScore(score=0.0))))
        return self._score(item.item, fault)

    def _takes_s(self, median_s: float) -> float:
        return median_s * math.exp(self._law.sigma * self._rng.gauss(0.0, 1.0))

    def _score(self, item: pipe.Scorable, fault: Fault | None) -> pipe.ScoreOut:
        if isinstance(item, pipe.TextItem):
            item = response_of(item)
        score = self._problems.score(item.split, item.index, item.tokens)
        self._faults.on_score(item)
        return pipe.ScoreOut(1.0 - score if fault is Fault.WRONG_SCORE else score)

    async def kill(self) -> None:
        """See `ScoringWorker`."""
        self._dead = True

    def _fault(self, *, standing: bool) -> Fault | None:
        fault = self._faults.take()
        if standing:
            fault = fault or self._faults.standing
        for kind, chance in self._law.chances:
            drawn = self._rng.random() < chance
            fault = fault or (kind if drawn else None)
        if fault is not None:
            self._faults.note(fault)
        return fault


def program_of(item: pipe.Scorable) -> bytes:
    """The program that a compiler makes of a response."""
    if isinstance(item, pipe.TextItem):
        return hashlib.blake2b(item.entry + item.response.encode(), digest_size=64).digest()
    name = f"{item.split}/{item.index}".encode()
    return hashlib.blake2b(name + array("I", item.tokens).tobytes(), digest_size=64).digest()


def _judged(spec: WorkerSpec) -> bool:
    """Whether a task of these workers has a judge beside its verifier."""
    settings = (spec.config or {}).get("settings")
    tasks = settings.get("task", ()) if isinstance(settings, dict) else ()
    return any(task.get("judge", {}).get("weight", 0) for task in tasks)


def _task(spec: WorkerSpec) -> str:
    """The name of the first task of these workers."""
    settings = (spec.config or {}).get("settings")
    tasks = settings.get("task", ()) if isinstance(settings, dict) else ()
    return str(tasks[0].get("name", "")) if tasks else ""


def _number(name: bytes) -> int:
    """A 64-bit number that belongs to a name."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
