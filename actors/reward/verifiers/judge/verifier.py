"""`JudgeVerifier`: verifier `judge`, a language model that scores responses by a rubric.

Runs in the reward worker, without a sandbox: a response is sent as data, and only the judge's own answer is
read. A failure of the judge is a status of ours, never a score. Calls of a batch run at the same time, within
this worker's part of the job's limits.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from gleaner.actors.reward import verdicts
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers import http_calls
from gleaner.actors.reward.verifiers.functions import MAX_DETAIL
from gleaner.actors.reward.verifiers.http_calls import Unavailable
from gleaner.actors.reward.verifiers.http_wires import BadAnswer
from gleaner.actors.reward.verifiers.judge import prompt
from gleaner.actors.reward.verifiers.judge.answer import NoScore, combined
from gleaner.actors.reward.verifiers.judge.calls import Clock, JudgeCalls, Vote, part_of
from gleaner.actors.reward.verifiers.judge.prompt import JudgePrompt, Rubric
from gleaner.actors.reward.verifiers.port import BadVerifier, Trial, VerifierSpec
from gleaner.actors.reward.verifiers.timed_scoring import GOES_ON
from gleaner.configs.schema import Judge

MAX_RUBRIC_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class Judged:
    """A response's judgement, and its course."""

    judgement: Judgement
    votes: Sequence[Vote]


class JudgeVerifier:
    """A `Verifier`; the parameters are the settings `[reward.judge]`. workers: 0 is 1, this one alone."""

    def __init__(self, spec: VerifierSpec, clock: Clock = time.monotonic) -> None:
        """Raises BadVerifier."""
        try:
            self._settings = msgspec.convert(dict(spec.params), Judge)
        except msgspec.ValidationError as error:
            raise BadVerifier(f"task {spec.task}: reward.judge: {error}") from None
        if self._settings.lacking:
            raise BadVerifier(f"task {spec.task}: reward.judge.{self._settings.lacking}")
        self._part = part_of(self._settings, self._settings.workers or 1)
        self._clock = clock
        self._runner: asyncio.Runner | None = None
        self._calls: JudgeCalls | None = None
        self._rubric = Rubric(self._settings.rubric_text, self._settings.scale)

    def open(self) -> None:
        """Read the rubric and the key; the judge is called by the first score. Raises `BadVerifier`."""
        if self._settings.rubric:
            self._rubric = Rubric(_text(Path(self._settings.rubric)), self._settings.scale)
        key = http_calls.secret(self._settings.key_env, "reward.judge.key_env")
        self.close()
        self._runner = asyncio.Runner()
        self._calls = self._runner.run(self._connected({"Authorization": f"Bearer {key}"} if key else {}))

    def close(self) -> None:
        """Close the connections."""
        if self._runner is not None:
            if self._calls is not None:
                self._runner.run(self._calls.close())
            self._runner.close()
        self._runner = self._calls = None

    def check(self, entry: Entry) -> str:
        """See `Verifier`: any problem will do."""
        return ""

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        """See `Verifier`: the place of the median vote on the scale, from 0 to 1. Each response is scored
        within the deadline, once it is begun; those that cannot be begun in time are overloaded."""
        return [one.judgement for one in self._judged(items)]

    def try_one(self, entry: Entry, response: str) -> Trial:
        """See `Tries`: with the judge's own texts."""
        (found,) = self._judged([(entry, response)])
        return Trial(
            judgement=found.judgement,
            read=prompt.shown(response, self._settings.max_response_chars),
            printed="\n".join(_course(number, vote) for number, vote in enumerate(found.votes, 1)),
        )

    async def _connected(self, headers: dict[str, str]) -> JudgeCalls:
        session = await http_calls.session(headers, self._part.calls)
        return JudgeCalls(self._settings, self._part, session, self._clock)

    def _judged(self, items: Sequence[tuple[Entry, str]]) -> list[Judged]:
        if self._runner is None:
            self.open()
        assert self._runner is not None
        return self._runner.run(self._all(items))

    async def _all(self, items: Sequence[tuple[Entry, str]]) -> list[Judged]:
        free = asyncio.Semaphore(max(self._part.calls // self._settings.votes, 1))
        until_s = self._clock() + GOES_ON * self._settings.deadline_s

        async def one(entry: Entry, response: str) -> Judged:
            async with free:
                return await self._one(entry, response, until_s)

        return await asyncio.gather(*(one(entry, response) for entry, response in items))

    async def _one(self, entry: Entry, response: str, until_s: float) -> Judged:
        """until_s: by when it must be begun."""
        calls, settings = self._calls, self._settings
        assert calls is not None
        text = prompt.shown(response, settings.max_response_chars)
        votes = [Vote() for _ in range(settings.votes)]

        def asked(vote: int, number: int) -> JudgePrompt:
            return prompt.build(self._rubric, entry, text, vote, number)

        waited_s = await calls.reserve([asked(number, 0) for number in range(settings.votes)], until_s)
        if waited_s is None:
            text = "neither time nor calls within the job's limits are left for it: it is next"
            return Judged(_failed(verdicts.OVERLOADED, text), votes)
        for vote in votes:
            vote.waited_s = waited_s
        try:
            async with asyncio.timeout(settings.deadline_s):
                await _voted(calls, asked, votes, self._clock() + settings.deadline_s)
        except TimeoutError:
            status, why = verdicts.UNAVAILABLE, f"no score within {settings.deadline_s:g} s"
        except Unavailable as problem:
            status, why = verdicts.UNAVAILABLE, str(problem)
        except (NoScore, BadAnswer) as problem:
            status, why = verdicts.VERIFIER_FAILED, str(problem)
        else:
            return Judged(self._judgement(votes), votes)
        return Judged(_failed(status, f"{settings.url}: {why}{_failures(votes, why)}; {_sums(votes)}"), votes)

    def _judgement(self, votes: Sequence[Vote]) -> Judgement:
        scores = [vote.score for vote in votes if vote.score is not None]
        low, high = self._settings.scale
        score = combined(scores)
        detail = f"votes {', '.join(f'{one:g}' for one in scores)}; {_sums(votes)}"
        return Judgement((score - low) / (high - low), detail=detail[:MAX_DETAIL], parts={"judge": score})


async def _voted(
    calls: JudgeCalls, asked: Callable[[int, int], JudgePrompt], votes: Sequence[Vote], by_s: float
) -> None:
    """All votes at the same time. Raises Unavailable, NoScore, BadAnswer of the first one that failed."""
    try:
        async with asyncio.TaskGroup() as group:
            for number, vote in enumerate(votes):
                group.create_task(calls.vote(partial(asked, number), vote, by_s))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def _sums(votes: Sequence[Vote]) -> str:
    """Calls and waits of all votes."""
    calls = sum(vote.calls for vote in votes)
    return f"{calls} calls, waited {max(vote.waited_s for vote in votes):.2f} s"


def _failures(votes: Sequence[Vote], why: str) -> str:
    """The last failure of a call, if it is another than `why`."""
    last = next((vote.failures[-1] for vote in votes if vote.failures), "")
    return f"; before that: {last}" if last and last != why else ""


def _course(number: int, vote: Vote) -> str:
    score = "none" if vote.score is None else f"{vote.score:g}"
    lines = [f"vote {number}: {score}, {vote.calls} calls, waited {vote.waited_s:.2f} s"]
    return "\n".join([*lines, *(f"failed: {one}" for one in vote.failures), vote.text])


def _text(file: Path) -> str:
    """A rubric. Raises BadVerifier."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_RUBRIC_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise BadVerifier(
            f"reward.judge.rubric: {file}: {error.strerror or error}: name a text file"
        ) from None
    except UnicodeDecodeError as error:
        raise BadVerifier(
            f"reward.judge.rubric: {file}: expected UTF-8 text, got other bytes at offset {error.start}"
        ) from None
    if len(data) > MAX_RUBRIC_BYTES:
        raise BadVerifier(f"reward.judge.rubric: {file}: more than {MAX_RUBRIC_BYTES} bytes: is it a rubric?")
    if not text.strip():
        raise BadVerifier(f"reward.judge.rubric: {file}: is empty: describe what earns which score")
    return text


def _failed(status: str, text: str) -> Judgement:
    return Judgement(0.0, status, text[:MAX_DETAIL])
