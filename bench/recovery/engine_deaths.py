"""Deaths of engines of a real job, until their requests have the next token.

One death after the other. The engine's process is killed (SIGKILL: its sockets close), or stopped (SIGSTOP:
silence, which only the heartbeat shows). The next death waits until the victim's successor decodes again.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.recovery.job import JobFailed, RunningJob, running_job
from bench.recovery.journal_tail import JournalTail, Resumed, Resumption
from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.rollout import RolloutFigures, RolloutStatus
from gleaner.chaos.run_processes import Proc
from gleaner.rlctl.client import connect_to_run
from gleaner.rlctl.runs import RunDir

LOOK_S = 0.003  # between two polls of the journal
BEGUN = 4  # requests that a victim decodes at least
READY_S = 120.0
RESUME_S = 60.0  # a longer time is a failure, not a figure


@dataclass(frozen=True, slots=True)
class Death:
    """One of them: seconds from the signal until the manager gave the instance up, until the first of its
    requests was dispatched elsewhere, until the first and the last of them had its next token committed."""

    requests: int
    gone_s: float
    dispatched_s: float
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class Deaths:
    """All of one job: by SIGKILL, by SIGSTOP, and the manager's counts over them."""

    killed: list[Death]
    stopped: list[Death]
    tokens: int
    migrated: int
    generated_twice: int
    lost: int


def measure(
    folder: Path, kills: int, stops: int, settings: Sequence[str], say: Callable[[str], None]
) -> Deaths:
    """So many deaths in one job. Raises JobFailed."""
    with running_job(folder, settings) as job:
        watch = _Watch(job, say)
        try:
            killed = [watch.death(signal.SIGKILL, number) for number in range(kills)]
            stopped = [watch.death(signal.SIGSTOP, number) for number in range(stops)]
        finally:
            watch.close()
        figures = asyncio.run(_figures(job.run))
    return Deaths(
        killed,
        stopped,
        figures.tokens_collected,
        figures.requests_migrated,
        figures.tokens_generated_twice,
        figures.tokens_lost,
    )


async def _figures(run: RunDir) -> RolloutFigures:
    async with connect_to_run(run) as cluster:
        return await cluster.ask(MANAGER, RolloutStatus(), expect=RolloutFigures, deadline_s=READY_S)


class _Watch:
    """The job, and its journal."""

    def __init__(self, job: RunningJob, say: Callable[[str], None]) -> None:
        self._job, self._say = job, say
        self._tail = JournalTail(job.journal)
        self._seen = Resumption()

    def close(self) -> None:
        self._tail.close()

    def death(self, number: signal.Signals, count: int) -> Death:
        """The next victim, in turn; another one if a snapshot hid its requests, or if all its requests ended
        with its last frames."""
        while True:
            missed = self._tail.missed
            victim = self._victim(count)
            process = self._job.engine(victim.removesuffix("/engine"))
            if process is None:
                continue
            self._look()
            resumed = self._seen.kill(victim)
            began_s = time.monotonic()
            process.signal(number)
            try:
                self._until_resumed(resumed, victim)
            finally:
                _end(process)
            if resumed.count and self._tail.missed == missed:
                death = _death(resumed, began_s)
                self._say(f"{number.name} {victim}, {death.requests} requests: {death.first_s:.3f} s")
                return death

    def _victim(self, count: int) -> str:
        """An instance that decodes, beside others that do."""

        def busy() -> list[str]:
            self._look()
            return sorted(name for name in self._seen.held if self._seen.busy(name) >= BEGUN)

        self._job.wait(lambda: len(busy()) > 1, "instances that decode", READY_S, LOOK_S)
        names = busy()
        return names[count % len(names)]

    def _until_resumed(self, resumed: Resumed, victim: str) -> None:
        def over() -> bool:
            self._look()
            return resumed.last is not None or (resumed.gone is not None and not resumed.count)

        self._job.wait(over, f"the next tokens of the requests of {victim}", RESUME_S, LOOK_S)

    def _look(self) -> None:
        for event in self._tail.poll():
            self._seen.see(event)


def _death(resumed: Resumed, began_s: float) -> Death:
    times = (resumed.gone, resumed.dispatched, resumed.first, resumed.last)
    if any(time_s is None for time_s in times):
        raise JobFailed(f"the journal has no complete record of a death: {resumed}")
    gone, dispatched, first, last = (float(time_s or 0.0) - began_s for time_s in times)
    return Death(resumed.count, gone, dispatched, first, last)


def _end(process: Proc) -> None:
    """A stopped process continues, and detects that it was given up."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.signal(signal.SIGCONT)
