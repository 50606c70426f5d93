"""`WorkerProcess`: the pool's end of one worker process (start, ask, kill).

Owns the child and its pipe. Every wait has a deadline, and every end of the child has a name: `WorkerHung`,
`WorkerDied` (with the signal or exit code), `ScorerUnusable` (it started, but could not load its scorer).
"""

import asyncio
import contextlib
import json
import os
import signal
import sys

from gleaner.actors.reward import pipe
from gleaner.actors.reward.scoring import ScorerUnusable, WorkerDied, WorkerHung, WorkerSpec
from gleaner.supervisor.process import PARENT_VARIABLE
from gleaner.supervisor.watch.turn_clock import timeout_in_turns

# Numeric libraries start a thread a core; there is one worker a core already, and each thread reserves
# memory.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
REAP_S = 5.0  # a SIGKILLed process ends at once, unless the kernel itself is stuck with its pages


class WorkerProcess:
    """A `ScoringWorker` that is a child process. Make it with `start`, and always `kill` it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @staticmethod
    async def start(spec: WorkerSpec) -> "WorkerProcess":
        """A worker that loaded its scorer. Raises `ScorerUnusable`, `WorkerDied` or `WorkerHung`."""
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gleaner.actors.reward.worker",
                f"--scorer={spec.scorer}",
                f"--config={json.dumps(dict(spec.config or {}))}",
                f"--memory-bytes={spec.memory_bytes}",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **ONE_THREAD, PARENT_VARIABLE: str(os.getpid())},
                start_new_session=True,  # a group of its own: what a verifier forks goes with it
            )
        except OSError as error:
            raise WorkerDied(f"it could not be started: {error}") from error
        worker = WorkerProcess(process)
        try:
            first = await worker._exchange(None, spec.start_s)
        except BaseException:
            await worker.kill()
            raise
        if isinstance(first, pipe.Failed):
            await worker.kill()
            raise ScorerUnusable(f"{spec.scorer}: {first.detail}")
        return worker

    @property
    def dead(self) -> bool:
        """Whether the process ended by itself. Asks the kernel: the loop may learn it a moment later."""
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # reaped already
            return True
        return ended is not None

    async def ask(self, frame: bytes, deadline_s: float) -> pipe.Answer:
        """The answer to one packed item. Raises `WorkerHung` or `WorkerDied`: then kill the worker."""
        return await self._exchange(frame, deadline_s)

    async def kill(self) -> None:
        """End the process and what it forked, and reap it. A second call does nothing."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REAP_S):
                await self._process.wait()

    async def _exchange(self, frame: bytes | None, deadline_s: float) -> pipe.Answer:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise WorkerDied("it has no pipe")
        try:
            async with timeout_in_turns(deadline_s):
                if frame is not None:
                    if stdin.is_closing():  # uvloop raises RuntimeError for a write then
                        raise ConnectionResetError
                    stdin.write(frame)
                    await stdin.drain()
                size = pipe.length(await stdout.readexactly(pipe.PREFIX.size))
                return pipe.answer(await stdout.readexactly(size))
        except TimeoutError:
            raise WorkerHung(f"no answer within {deadline_s:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WorkerDied(await self._last_words()) from None
        except pipe.BadFrame as error:
            raise WorkerDied(f"it wrote garbage into its pipe: {error}") from error

    async def _last_words(self) -> str:
        try:
            async with asyncio.timeout(REAP_S):
                return how_it_ended(await self._process.wait())
        except TimeoutError:
            return "closed its pipe and lives on"


def how_it_ended(returncode: int) -> str:
    """`signal 11 (SIGSEGV)` or `exit code 3`."""
    if returncode >= 0:
        return f"exit code {returncode}"
    name = signal.Signals(-returncode).name if -returncode in set(signal.Signals) else "unknown"
    return f"signal {-returncode} ({name})"
