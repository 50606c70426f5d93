"""Rounds of a job that trains on programs, with tail batching (RollPacker section 3), and their scoring.

Owns the laws of the workload, and the queue of the reward workers with production's timeouts. A round is
complete when each response that it trains on has a verdict: responses are scored while others decode.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gleaner.actors.reward.case_limits import CaseTimes
from gleaner.actors.reward.planning.items import Floats
from gleaner.actors.reward.timeouts import AdaptiveTimeouts


@dataclass(frozen=True, slots=True)
class RoundLaw:
    """A job of RollPacker's size (Qwen2.5-7B, 8k tokens). Given by the paper: the sizes, the share of
    programs that ran into a timeout of 30 s, a round for deferred prompts when they fill one. Assumed: the
    rest.

    Args:
        prompts, samples: trained on in each round (P0, R0).
        speculation: over them are begun in a short round (eta).
        median_tokens, sigma, limit_tokens: of responses, log-normal.
        tokens_per_s: of one response.
        runaways: share of all programs that do not end.
        right: mean share of right programs. A problem's own is from a beta law: most are mostly right or
            mostly wrong, and those that do not end are wrong.
        test_s: median processor time of a problem's slowest test, log-normal with a sigma of 1; right
            programs for one problem differ by a sigma of 0.3.
        problems: of the data; they return when all were used.
    """

    prompts: int = 128
    samples: int = 8
    speculation: float = 1.25
    median_tokens: float = 1500.0
    sigma: float = 0.9
    limit_tokens: int = 8192
    tokens_per_s: float = 100.0
    runaways: float = 0.05
    right: float = 0.5
    test_s: float = 0.5
    problems: int = 100_000


CORRELATION = 0.6  # of lengths in a group, in logarithms
TEST_SIGMA, PROGRAM_SIGMA = 1.0, 0.3
LONGEST_TEST_S = 25.0
BETA = 1.5


class Program(NamedTuple):
    """A response when its rollout ended. takes_s: processor time of its slowest test, inf for one that does
    not end. trained: the round waits for its verdict; the others are cancelled at the round's end."""

    arrival_s: float
    problem: str
    takes_s: float
    right: bool
    trained: bool


class Round(NamedTuple):
    """rollout_s: when the last response that is trained on ended. programs: by arrival."""

    rollout_s: float
    programs: list[Program]


def rounds(law: RoundLaw, count: int, seed: int) -> Iterator[Round]:
    """So many rounds: short ones, and a long one whenever enough prompts were deferred."""
    rng = np.random.default_rng([seed, 13])
    prompts = _Prompts(rng, law)
    deferred: list[int] = []
    for _ in range(count):
        if len(deferred) >= law.prompts:
            drawn, deferred = deferred[: law.prompts], deferred[law.prompts :]
            samples = law.samples
        else:
            drawn = prompts.next(math.ceil(law.prompts * law.speculation))
            samples = math.ceil(law.samples * law.speculation)
        ends_s = prompts.ends_s(drawn, samples)
        whole_s = np.partition(ends_s, law.samples - 1, axis=1)[:, law.samples - 1]
        order = np.argsort(whole_s, kind="stable")
        kept = set(order[: law.prompts].tolist())
        deferred += [drawn[at] for at in order[law.prompts :]]
        rollout_s = float(whole_s[order[law.prompts - 1]])
        yield Round(rollout_s, sorted(prompts.programs(drawn, ends_s, kept, rollout_s)))


class _Prompts:
    """The problems of the data, each with its length, its share of right programs and its slowest test."""

    def __init__(self, rng: np.random.Generator, law: RoundLaw) -> None:
        self._rng, self._law, self._used = rng, law, 0
        self._order = rng.permutation(law.problems)
        self._length = rng.normal(0.0, 1.0, law.problems)
        self._right = rng.beta(BETA * law.right, BETA * (1 - law.right), law.problems)
        drawn_s = law.test_s * rng.lognormal(0.0, TEST_SIGMA, law.problems)
        self._test_s = np.minimum(drawn_s, LONGEST_TEST_S)

    def next(self, count: int) -> list[int]:
        """The next problems of the data."""
        found = [int(self._order[(self._used + at) % len(self._order)]) for at in range(count)]
        self._used += count
        return found

    def ends_s(self, drawn: list[int], samples: int) -> Floats:
        """When each response has ended, by prompt and sample."""
        own = self._rng.normal(0.0, 1.0, (len(drawn), samples))
        shared = self._length[drawn][:, None]
        spread = math.sqrt(CORRELATION) * shared + math.sqrt(1 - CORRELATION) * own
        tokens = self._law.median_tokens * np.exp(self._law.sigma * spread)
        ends_s: Floats = np.clip(tokens, 1, self._law.limit_tokens) / self._law.tokens_per_s
        return ends_s

    def programs(
        self,
        drawn: list[int],
        ends_s: Floats,
        kept: set[int],
        rollout_s: float,
    ) -> Iterator[Program]:
        """The responses that end within the round and are among the first of their prompt."""
        wrong_runs = self._law.runaways / (1 - self._law.right)
        for at, problem in enumerate(drawn):
            for end_s in np.sort(ends_s[at])[: self._law.samples]:
                right = bool(self._rng.random() < self._right[problem])
                takes_s = float(self._test_s[problem] * self._rng.lognormal(0.0, PROGRAM_SIGMA))
                if not right and self._rng.random() < wrong_runs:
                    takes_s = math.inf
                if end_s <= rollout_s:
                    yield Program(float(end_s), str(problem), takes_s, right, at in kept)


@dataclass(slots=True)
class Scored:
    """complete_s: of each round, rollout and rewards. right, right_cut: programs of the rounds that were
    right, and those of them that a timeout ended."""

    complete_s: list[float] = field(default_factory=list)
    right: int = 0
    right_cut: int = 0


class Workers:
    """Reward workers with a queue in the order of arrival, each with one program at a time.

    Args:
        count: of workers.
        max_s: timeout of every program.
        timeouts: what adapts it to the problem; None: nothing does.
    """

    def __init__(self, count: int, max_s: float, timeouts: AdaptiveTimeouts | None = None) -> None:
        self._count, self._max_s, self._timeouts = count, max_s, timeouts
        self.scored = Scored()

    def score(self, one: Round) -> None:
        """Score the programs of a round. Workers are idle when it begins."""
        free_s = [0.0] * self._count
        ended: list[tuple[float, Program, float]] = []
        complete_s, audit_until_s = one.rollout_s, 0.0
        for program in one.programs:
            start_s = max(program.arrival_s, free_s[0])
            if not program.trained and start_s >= one.rollout_s:
                continue  # cancelled while it waited
            while ended and ended[0][0] <= start_s:
                self._learn(*heapq.heappop(ended)[1:])
            limit_s = self._limit_s(program)
            end_s = start_s + min(program.takes_s, limit_s)
            if program.trained:
                complete_s = max(complete_s, end_s)
                self.scored.right += program.right
                self.scored.right_cut += program.right and program.takes_s > limit_s
            elif end_s > one.rollout_s:
                heapq.heapreplace(free_s, one.rollout_s)
                continue  # cancelled while it ran
            heapq.heappush(ended, (end_s, program, limit_s))
            if limit_s < min(self._max_s, program.takes_s) and end_s >= audit_until_s and self._audits():
                end_s += min(program.takes_s, self._max_s)
                audit_until_s = end_s
                heapq.heappush(ended, (end_s, program, self._max_s))
            heapq.heapreplace(free_s, end_s)
        while ended:
            self._learn(*heapq.heappop(ended)[1:])
        self.scored.complete_s.append(complete_s)

    def _limit_s(self, program: Program) -> float:
        if self._timeouts is None:
            return self._max_s
        return self._timeouts.limits(program.problem).of(1)[0]

    def _learn(self, program: Program, limit_s: float) -> None:
        if self._timeouts is not None and program.right and program.takes_s <= limit_s:
            self._timeouts.observe(program.problem, CaseTimes((program.takes_s,)))

    def _audits(self) -> bool:
        return self._timeouts is not None and self._timeouts.audits()
