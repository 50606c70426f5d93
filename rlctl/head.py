"""Head of a run as a child process: start, watch, ordered stop, clean-up.

Owns the process and the mark (`GLEANER_RUN` in the environment) that identifies every process it started. All
of them die with this process, whatever kills it.
"""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from gleaner.configs.schema import Config
from gleaner.nodeagent.exit_codes import USAGE as NODE_USAGE
from gleaner.nodeagent.exit_codes import CannotRun
from gleaner.nodeagent.files import AgentFile, find_agent, forget_agent
from gleaner.rlctl.errors import CommandError, failed, usage
from gleaner.rlctl.preflight import listen_address
from gleaner.rlctl.runs import RunDir
from gleaner.supervisor.process import PARENT_VARIABLE, last_words

RUN_VARIABLE = "GLEANER_RUN"
START_S = 60.0  # until the head reports its address; a cold disk and two busy cores are slow
STOP_S = 45.0  # for an ordered end: it gives its hosts 12 s and itself 30 s
VANISH_S = 5.0  # until processes that die with their parents are gone
POLL_S = 0.1
LAST_LINES = 3
_RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\S+ (?:WARNING|ERROR|CRITICAL) ")


class Head:
    """A running head."""

    def __init__(self, run: RunDir, process: asyncio.subprocess.Process, output: Path) -> None:
        self._run = run
        self._process = process
        self._output = output
        self._killed_for = ""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def ended(self) -> CommandError:
        """Wait for the head's end and return its cause."""
        code = await self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        how += f" ({self._killed_for})" if self._killed_for else ""
        lines = [f"the head of {self._run.id} ended with {how}", *self._last_lines()]
        return usage(*lines) if code == NODE_USAGE else failed(*lines)

    async def found(self) -> AgentFile:
        """The head's address. Raises CommandError where the head ends, or does not report it in time."""
        ended = asyncio.create_task(self.ended())
        try:
            async with asyncio.timeout(START_S):
                while not ended.done():
                    with contextlib.suppress(CannotRun):
                        agent = find_agent(self._run.head)
                        if agent.pid == self.pid:
                            return agent
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise failed(
                f"the head of {self._run.id} did not come up within {START_S:.0f} s", *self._last_lines()
            ) from None
        finally:
            if not ended.done():
                ended.cancel()
        raise ended.result()

    def cpu_s(self) -> float:
        """Processor seconds that it has used so far; 0 once it has ended."""
        try:
            used = psutil.Process(self.pid).cpu_times()
        except psutil.NoSuchProcess:
            return 0.0
        return used.user + used.system

    def kill(self, why: str = "") -> None:
        """SIGKILL; all processes that it started die with it, and `sweep` frees what they leave. `why` is
        reported."""
        self._killed_for = self._killed_for or why
        if self._process.returncode is None:
            self._process.kill()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after `STOP_S`."""
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    def _last_lines(self) -> list[str]:
        for file in (self._output, self._run.head / "logs" / "agent.log"):
            with contextlib.suppress(OSError):
                lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
                if file is not self._output:  # of a log, the failure without tracebacks
                    lines = [line for line in lines if _RECORD.match(line)]
                lines = [line for line in lines if last_words([line])]
                if lines:
                    return lines[-LAST_LINES:]
        return [f"its logs in {self._run.head / 'logs'} have no error"]


@asynccontextmanager
async def running_head(run: RunDir, config: Config) -> AsyncIterator[Head]:
    """Start the head of a run; at the end it is stopped with every process that it started.

    Call it on the main thread: a child is tied to the life of the thread that started it.
    """
    output = run.head / "logs" / "agent.out"
    output.parent.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "gleaner.nodeagent", "start", "--role", "head", "--name", "head"]
    argv += ["--fleet", "local", "--state-dir", str(run.head), "--listen", listen_address(config)]
    if config.network.keys:
        argv += ["--keys", config.network.keys, "--bulk", config.network.bulk]
    env = {**os.environ, PARENT_VARIABLE: str(os.getpid()), RUN_VARIABLE: str(run.path)}
    with output.open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=env,
            start_new_session=True,  # Ctrl-C is for this process alone, which then stops the head in order
        )
    head = Head(run, process, output)
    try:
        yield head
    finally:
        await head.stop()
        await sweep(run)


async def sweep(run: RunDir) -> int:
    """Wait until no process of the run is left, kill the rest, free its shared memory, remove the files by
    which its hosts were found.

    Returns the number of killed processes; none, unless something is wrong.
    """
    waited_s = 0.0
    while (left := remains(run)) and waited_s < VANISH_S:
        await asyncio.sleep(POLL_S)
        waited_s += POLL_S
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for folder in run.memory():
        shutil.rmtree(folder, ignore_errors=True)
    for state_dir in run.hosts():
        forget_agent(state_dir)
    return len(left)


async def wait_for_remains(run: RunDir) -> None:
    """Before a resume: wait until the processes of a killed `rlctl` are dead. Raises CommandError where they
    stay."""
    waited_s = 0.0
    while left := remains(run):
        if waited_s > VANISH_S:
            pids = ", ".join(str(process.pid) for process in left)
            raise failed(f"{run.id}: processes of this run still live: {pids}; kill them first")
        await asyncio.sleep(POLL_S)
        waited_s += POLL_S


def remains(run: RunDir) -> list[psutil.Process]:
    """Processes of this run, zombies excepted."""
    mark = str(run.path)
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(RUN_VARIABLE) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
