"""Worker processes that run simulated jobs in parallel, at most so many at a time.

Owns the processes: each gets one order after another, is killed when a run hangs (`hang_detector`), and is
replaced when it dies. A run that hangs or ends its process is reported as broken, never left out.
"""

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import AsyncGenerator, Iterable

import msgspec
import psutil

from gleaner.chaos.hang_detector import HangDetector, Sample
from gleaner.chaos.run_orders import RunOrder
from gleaner.chaos.tally import Broken, RunReport

MAX_LINE = 32 << 20
"""Bytes of one answer; one with fifty violations is tens of kB."""
START_S = 60.0
"""Processor seconds for a worker to import what it runs; a few on a fast machine."""
BLOCKED_S = 120.0
"""A run computes all the time: one that is blocked for so long waits for an event that never happens."""
LOOK_S = 1.0
"""Between two polls of a worker. A poll counts as no more than this, so that a campaign that was stopped does
not blame a worker for it."""
MAX_ERRORS = 2000
"""Characters shown of a dead worker's last output."""


class Worker:
    """One process, and the next one when it is gone. Lives on the running loop.

    Args:
        run_s: processor seconds of one run.
        mutation: planted in it; "" for none.
    """

    def __init__(self, run_s: float, mutation: str = "") -> None:
        self._run_s = run_s
        self._argv = [
            sys.executable,
            "-m",
            "gleaner.chaos.worker",
            *(["--mutation", mutation] if mutation else []),
        ]
        self._process: asyncio.subprocess.Process | None = None
        self._errors: asyncio.Task[None] | None = None
        self._words: deque[str] = deque(maxlen=40)

    async def ask(self, order: RunOrder) -> RunReport:
        """Run it. Raises OSError where no process can be started."""
        processor_s = self._run_s
        if self._process is None:
            self._process = await self._start()
            processor_s += START_S
        detector = HangDetector(_sample(self._process.pid), processor_s=processor_s, blocked_s=BLOCKED_S)
        answer = asyncio.create_task(self._answer(self._process, order))
        try:
            why = await _until_done_or_hung(answer, self._process.pid, detector)
        finally:
            if not answer.done():
                answer.cancel()
        if why:
            await self.end()
            return _broken(order.seed, "hung", why)
        line = answer.result()
        if line:
            return msgspec.json.decode(line, type=RunReport)
        await self.end()
        words = "".join(self._words)[-MAX_ERRORS:].strip()
        return _broken(order.seed, "crashed", f"the worker died: {words or 'without a word'}")

    async def end(self) -> None:
        """Kill the process, if there is one. A caller that was cancelled in here must call it again."""
        process = self._process
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            if process.returncode is None:
                process.kill()
            await process.wait()
            if process.stdout is not None:
                await process.stdout.read()  # to its end: an open pipe outlives the loop
        if self._errors is not None:
            await asyncio.wait([self._errors])  # ends with the process
        self._process = self._errors = None

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MAX_LINE,
        )
        assert process.stderr is not None
        self._words.clear()
        self._errors = asyncio.create_task(self._listen(process.stderr))
        return process

    async def _answer(self, process: asyncio.subprocess.Process, order: RunOrder) -> bytes:
        """Its answer line; empty where it died."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            await process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            return b""
        return await process.stdout.readline()

    async def _listen(self, errors: asyncio.StreamReader) -> None:
        """Standard error is read all the time, or its pipe would fill."""
        while line := await errors.readline():
            self._words.append(line.decode(errors="replace"))


async def _until_done_or_hung(answer: "asyncio.Task[bytes]", pid: int, detector: HangDetector) -> str:
    """Wait for the answer; why the run is hung, "" where it answered."""
    while True:
        await asyncio.wait([answer], timeout=LOOK_S)
        if answer.done():
            return ""
        if why := detector.hung(_sample(pid), LOOK_S):
            return why


def _sample(pid: int) -> Sample:
    """One poll of a worker; an ended one waits for nothing, and its pipe shows the end."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            waits = process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
        return Sample(times.user + times.system, waits)
    return Sample(0.0, waits_for_machine=False)


async def run_all(
    orders: Iterable[RunOrder], *, count: int, run_s: float, mutation: str = ""
) -> AsyncGenerator[RunReport, None]:
    """Every order's answer, in the order of completion, from `count` workers. Cancelled or closed, it kills
    its processes. Raises OSError where none can be started."""
    if count < 1:
        raise ValueError(f"{count} workers: at least 1 is needed")
    waiting = deque(orders)
    left = len(waiting)
    answers: asyncio.Queue[RunReport | Exception] = asyncio.Queue(maxsize=2 * count)

    workers = [Worker(run_s, mutation) for _ in range(min(count, left))]

    async def slot(worker: Worker) -> None:
        try:
            while waiting:
                await answers.put(await worker.ask(waiting.popleft()))
        except (OSError, ValueError) as problem:  # no process, or an answer of another form
            await answers.put(problem)
        finally:
            await worker.end()

    slots = [asyncio.create_task(slot(worker)) for worker in workers]
    try:
        for _ in range(left):
            answer = await answers.get()
            if isinstance(answer, Exception):
                raise answer
            yield answer
    finally:
        for task in slots:
            task.cancel()
        await asyncio.gather(*slots, return_exceptions=True)
        for worker in workers:  # one that was cancelled while it ended its process
            await worker.end()  # nothing is left to the loop's end


def _broken(seed: int, ended: str, text: str) -> RunReport:
    return RunReport(seed=seed, ended=ended, broken=(Broken(check="I8", at_s=0.0, text=text),))
