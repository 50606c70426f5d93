"""Cost of the decisions of rounds: a look at a race, a whole race, and a plan that chooses a surplus.

    python -m bench.round_decisions                     2,000 requests: 250 groups of 8
    python -m bench.round_decisions --groups 500 --json decisions.json

One process, processor time. The race is that of the manager (`GroupSelection` with its state, without its
journal): responses have log-normal lengths, all of them grow at the same pace, and the race is looked at ten
times a second, and where a response ended. Tokens are appended between the looks, which is not counted. The
plan is the Scheduler's, after a whole step, with six surpluses to choose from.
"""

import argparse
import asyncio
import json
import math
import platform
import random
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

from gleaner.actors.cluster.planner import planner_of
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.step_times import RoundKinds, Seen, StepTimes
from gleaner.actors.protocol.throughput import EnginePace
from gleaner.actors.rollout.batches.group_selection import RACE_S, GroupSelection
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.training.rounds import RoundRule, surpluses
from gleaner.configs.load import load
from gleaner.supervisor import Context, Message

BATCH = "step-1"
COUNTED = 0.8
"""Share of the launched groups that count: a factor of 1.25."""
LIMIT, MEDIAN, SIGMA = 4096, 400.0, 0.8
"""Tokens of a response at most and in the median, and the sigma of their logarithms."""
TOKENS = 4
"""Of each response from one look to the next: 40 a second."""
LOOKS = 21
PLANS = 5


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured cost and its aim, both in `unit`."""

    what: str
    unit: str
    value: float
    aim: float

    @property
    def met(self) -> bool:
        """Whether the cost is below the aim."""
        return self.value < self.aim


class _Clock:
    """A context whose time is set; what it gets to run is not run."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def turn_time(self) -> float:
        return self.now_s

    def background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        work.close()


class _Applied:
    """A journal whose events change the state at once."""

    def __init__(self) -> None:
        self.state = RolloutState()

    def enter(self, *events: Message, flush: bool = False) -> tuple[list[Effects], asyncio.Future[int]]:
        return [self.state.apply(event) for event in events], cast("asyncio.Future[int]", None)


class Race:
    """A race of `groups` groups of `samples` responses; it is over when the groups that count are known."""

    def __init__(self, groups: int, samples: int, seed: int = 0) -> None:
        rng = random.Random(seed)
        self._clock, self._applied = _Clock(), _Applied()
        prompts = tuple(
            Prompt(split="train", index=group, tokens=(1,), seeds=tuple(range(samples)))
            for group in range(groups)
        )
        self.wanted = math.ceil(COUNTED * groups)
        self._applied.state.apply(
            BatchSubmitted(
                batch=BATCH, version=0, prompts=prompts, max_new_tokens=LIMIT, wanted=self.wanted,
                most=groups, race="tokens", over_sampling=groups / self.wanted,
            )
        )  # fmt: skip
        self.batch = self._applied.state.log.batches[BATCH]
        self._selection = GroupSelection(
            cast("Context", self._clock),
            cast("JournaledState", self._applied),
            cast("Instances", {}),
            1,
            lambda changes: None,
        )
        self._running = [log for group in self.batch.groups for log in group]
        for log in self._running:
            log.attempts = 1
        self._ends = {log.id: _length(rng) for log in self._running}
        self.finished = 0
        self.spent_s = 0.0
        """Processor seconds of looks and decisions so far."""

    @property
    def kept(self) -> int:
        """Groups that count for certain."""
        return len(self.batch.fates.kept)

    def look(self) -> float:
        """Every response gets a token; processor seconds of a look at all groups then."""
        for log in self._running:
            log.append(7, -1.0, "spot-0", 1, 0)
        begun_s = time.process_time()
        self._selection.look(self.batch)
        return time.process_time() - begun_s

    def run(self) -> None:
        """From the first token until the groups that count are known."""
        while self.kept < self.wanted:
            self._clock.now_s += RACE_S
            over = [log for log in self._running if self._grown(log)]
            self._running = [log for log in self._running if log.state is RequestState.QUEUED]
            begun_s = time.process_time()
            for log in over:
                if log.state is RequestState.QUEUED:  # not if an earlier look gave it up
                    self.finished += 1
                    self._applied.state.log.move(log, RequestState.FINISHED)
                    self._selection.look(self.batch, {log.group})
            self._selection.frame_arrived()
            self.spent_s += time.process_time() - begun_s

    def _grown(self, log: RequestLog) -> bool:
        """Give it the tokens of an interval; returns whether it has ended."""
        for _ in range(min(TOKENS, self._ends[log.id] - len(log))):
            log.append(7, -1.0, "spot-0", 1, 0)
        return len(log) == self._ends[log.id]


def _length(rng: random.Random) -> int:
    return max(1, min(LIMIT, round(MEDIAN * math.exp(rng.gauss(0, SIGMA)))))


def look_ms(groups: int, samples: int) -> float:
    """Median of looks at a race in which every response runs and has got longer, in ms."""
    race = Race(groups, samples)
    return 1e3 * median(race.look() for _ in range(LOOKS))


def finished_us(groups: int, samples: int) -> float:
    """Looks and decisions of a whole race over its finished responses, in us."""
    race = Race(groups, samples)
    race.run()
    return 1e6 * race.spent_s / race.finished


def plan_s(prompts: int, samples: int) -> tuple[float, int]:
    """Median of plans of the Scheduler's policy after a whole step, in s, and the number of surpluses from
    which each plan chooses: six, fewer for a small step."""
    config = load(
        "rlboost-14b",
        [
            f"rollout.prompts={prompts}",
            f"rollout.samples={samples}",
            "rounds.mode=auto",
            "rounds.prompts_plan=model",
        ],
    )
    policy = planner_of(config)
    times, choices = _whole_step(prompts, samples)
    state = policy.next(policy.initial(16), times)
    spent = []
    for _ in range(PLANS):
        begun_s = time.process_time()
        planned = policy.next(state, times)
        spent.append(time.process_time() - begun_s)
        if planned.tail_surplus is None:
            raise RuntimeError("the plan chose no surplus: its time would mean nothing")
    return median(spent), choices


def _whole_step(prompts: int, samples: int) -> tuple[StepTimes, int]:
    """A step that was rolled out whole on 16 reserved engines and 4 instances, and the number of its
    surpluses. The lengths of 64 groups are known, as of any step with more."""
    rng = random.Random(0)
    lengths = sorted((sorted(_length(rng) for _ in range(samples)) for _ in range(64)), key=max)
    pace = EnginePace(step_s=0.025, context_s=3e-7, slots=64, cache_tokens=400_000)
    rule = RoundRule(prompts, samples, math.ceil(prompts / COUNTED), samples, steps=100)
    choices = surpluses(rule, begun=False)
    shorts = prompts / rule.surplus
    times = StepTimes(
        train_wait_s=60.0, remote_wait_s=60.0, train_s=100.0, remote_s=100.0, mean_prem=4.0, next_prem=4,
        reserved_engines=16,
        seen=Seen(
            step_s=230.0, seeding_s=60.0, update_s=2.0, rolled_s=110.0, start_s=3.0, reserved=pace,
            preemptible=pace, requests=prompts * samples, groups=prompts, limit=LIMIT, lengths=lengths,
            prompt_tokens=100.0,
        ),
        rounds=RoundKinds(
            done="plain", ahead="plain", shorts=shorts, surplus=rule.surplus, surpluses=choices
        ),
    )  # fmt: skip
    return times, len(choices)


def measure(groups: int, samples: int) -> list[Figure]:
    """All figures with the aims of 2,000 requests, whatever the size is."""
    planned_s, choices = plan_s(math.ceil(COUNTED * groups), samples)
    return [
        Figure(f"a look at a race of {groups * samples:,} requests", "ms", look_ms(groups, samples), 5.0),
        Figure("a finished request, over a whole race", "us", finished_us(groups, samples), 50.0),
        Figure(f"a plan with {choices} surpluses", "s", planned_s, 0.5),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns 0 whether the aims are met or not."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.round_decisions", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--groups", type=int, default=250, help="that a short round launches")
    parser.add_argument("--samples", type=int, default=8, help="of each group")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args(argv)
    figures = measure(args.groups, args.samples)
    for one in figures:
        met = "met" if one.met else "missed"
        print(f"{one.what:40}  {one.value:8.3f} {one.unit:2}  aim {one.aim:g} {one.unit}  {met}")
    print(f"python {platform.python_version()}, processor time")
    if args.json is not None:
        rows = [{**asdict(one), "met": one.met} for one in figures]
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
