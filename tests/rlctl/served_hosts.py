"""A reward service with reward hosts below it, as real processes, and its clients."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

FUNCTION = """
import time


def score(response, answer):
    time.sleep(0.3)
    return float(answer in response)
"""
JOB = """
[[task]]
name = "sums"
data = "none.jsonl"

[reward]
workers = 1
host_workers = 2

[reward.function]
call = "rewards_on_hosts:score"
deadline_s = 5.0

[liveness]
dead_s = 4.0
"""
LIMIT_S = 120.0
POLL_S = 0.1

Run = Callable[[Sequence[str]], Sequence[str]]
"""The command line that runs another one, such as in a namespace."""


def here(argv: Sequence[str]) -> Sequence[str]:
    """In no namespace."""
    return argv


def write_job(folder: Path) -> None:
    """The settings, and the verifier that sleeps."""
    (folder / "rewards_on_hosts.py").write_text(FUNCTION)
    (folder / "job.toml").write_text(JOB)


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until that holds."""
    deadline_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {LIMIT_S:g} s: {what}"
        time.sleep(POLL_S)


class Program:
    """A process of ours in a folder; killed at the end of the context. output: of both its streams."""

    def __init__(self, folder: Path, output: Path, argv: Sequence[str], run: Run = here) -> None:
        self.output = output
        with output.open("wb") as out:
            self.process = subprocess.Popen(
                [*run([sys.executable, "-m", *argv])],
                cwd=folder,
                stdout=out,
                stderr=out,
                env=dict(os.environ),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def ends(self, number: int) -> int:
        """Its exit code after a signal."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


class Served(Program):
    """`rlctl reward serve` with these words; its address is known when it is made."""

    def __init__(self, folder: Path, name: str, *words: str, run: Run = here) -> None:
        argv = ["gleaner.rlctl", "reward", "serve", "job.toml", "--json"]
        argv += ["--state-dir", str(folder / name), *words]
        super().__init__(folder, folder / f"{name}.out", argv, run)
        try:
            until(
                lambda: b"\n" in self.output.read_bytes() or self.process.poll() is not None, "a first line"
            )
            self.first: dict[str, Any] = json.loads(self.output.read_text().splitlines()[0])
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    @property
    def url(self) -> str:
        return str(self.first["url"])

    def hosts(self) -> dict[str, int]:
        """Items of each host that is there, by its name."""
        with urllib.request.urlopen(f"{self.url}/state", timeout=LIMIT_S) as answer:
            return {host["name"]: host["items"] for host in json.loads(answer.read())["hosts"]}

    def until_hosts(self, *names: str) -> None:
        """Wait until these have offered their workers, and no other."""
        wanted = {f"{name}/reward" for name in names}
        until(lambda: {name for name in self.hosts() if name.endswith("/reward")} == wanted, f"hosts {names}")


def score(url: str, number: int) -> float:
    """The score of one response by one request; every third response is wrong."""
    response = f"It is {number}" if number % 3 else "It is nothing"
    body = json.dumps({"prompt": "", "response": response, "label": str(number)}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/rm", data=body), timeout=LIMIT_S) as answer:
        return float(json.loads(answer.read()))


def scores(url: str, count: int, pool: ThreadPoolExecutor) -> "list[Future[float]]":
    """Requests that are under way at the same time."""
    return [pool.submit(score, url, number) for number in range(count)]


def right(count: int) -> list[float]:
    """What these are."""
    return [float(number % 3 != 0) for number in range(count)]


def agent_pid(state_dir: Path) -> int:
    """The node agent of a host, 0 while there is none."""
    try:
        return int(json.loads((state_dir / "agent.json").read_text())["pid"])
    except OSError:
        return 0


def host(folder: Path, name: str, join: str, *words: str, run: Run = here) -> Program:
    """`nodeagent start --role reward`."""
    argv = ["gleaner.nodeagent", "start", "--role", "reward", "--join", join, "--name", name]
    argv += ["--state-dir", str(folder / name), *words]
    return Program(folder, folder / f"{name}.out", argv, run)


STOP, KILL = signal.SIGTERM, signal.SIGKILL
