"""Real node agents for tests: started, found, and always killed by pid at the end."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from gleaner.nodeagent.exit_codes import CannotRun
from gleaner.nodeagent.files import AgentFile, find_agent
from gleaner.supervisor.process import PARENT_VARIABLE

START_S = 100.0  # machines that run tests are busy


def wait_for(condition: Callable[[], object], limit_s: float = START_S, what: str = "condition") -> None:
    """Poll until `condition` holds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {limit_s:.0f} s"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not collected does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Nodes:
    """Node agents of one test, each in its own state directory under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self, name: str, *args: str, state_dir: Path | None = None, own_group: bool = False
    ) -> AgentFile:
        """Start an agent and wait until it answers. `own_group`: in a process group that Ctrl-C ends."""
        process = self.popen(name, *args, state_dir=state_dir, own_group=own_group)
        found: list[AgentFile] = []

        def there() -> bool:
            assert process.poll() is None, f"{name} ended: {self.output(name)}"
            try:
                found.append(find_agent(state_dir or self.root / name))
            except CannotRun:
                return False
            return True

        wait_for(there, what=f"agent.json of {name}")
        return found[-1]

    def popen(
        self, name: str, *args: str, state_dir: Path | None = None, own_group: bool = False
    ) -> subprocess.Popen[bytes]:
        """Start an agent, which may fail."""
        # A failed test must leave nothing behind, so agents die with the test process.
        env = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        argv = [sys.executable, "-m", "gleaner.nodeagent", "start", "--name", name]
        argv += ["--state-dir", str(state_dir or self.root / name), *args]
        with (self.root / f"{name}.out").open("ab") as out:
            group = 0 if own_group else None
            process = subprocess.Popen(argv, stdout=out, stderr=out, env=env, process_group=group)
        self.processes[name] = process
        return process

    def fails(self, name: str, *args: str, state_dir: Path | None = None) -> tuple[int, str]:
        """Start an agent that cannot run: its exit code and output."""
        code = self.popen(name, *args, state_dir=state_dir).wait(START_S)
        return code, self.output(name)

    def output(self, name: str) -> str:
        """Output of the agent."""
        return (self.root / f"{name}.out").read_text()

    def log(self, name: str) -> str:
        """Its log file."""
        return (self.root / name / "logs" / "agent.log").read_text()

    def command(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run `nodeagent ...` to its end."""
        argv = [sys.executable, "-m", "gleaner.nodeagent", *args]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60.0, check=False)

    def close(self) -> None:
        """Kill the agents that still run."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait(60.0)
