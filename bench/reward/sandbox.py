"""Sandbox bench: warm forks beside a new bubblewrap and Python, and beside none.

    python -m bench.reward.sandbox --json sandbox.json

One process at a time, the ways in turn, ten calls each. It measures the processor time of all processes of a
way, which depends little on other work of the machine, and the median wall time of a call. Needs bubblewrap.
"""

import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from bench.runtime.machine import machine
from bench.table import Row, run
from gleaner.actors.reward.sandbox import shells, syscalls
from gleaner.actors.reward.sandbox.detection import detect
from gleaner.actors.reward.sandbox.host_end import HostSandbox
from gleaner.actors.reward.sandbox.port import Isolation, Limits, Status, Work
from gleaner.actors.reward.verifiers import program_runs
from gleaner.actors.reward.verifiers.programs import FILE_BYTES, INSIDE, RESULT_BYTES, USUAL

ROUNDS, TEST_ROUNDS = 12, 3
IN_A_ROW = 10
TESTS = 100
LIMITS = Limits(cpu_s=20.0, wall_s=60.0, file_bytes=FILE_BYTES, result_bytes=RESULT_BYTES)
SOURCE = "from collections import Counter\ndef f(n):\n    return 2 * n + Counter('aab')['a']\n"
READS = "from collections import Counter\nprint(2 * int(input()) + Counter('aab')['a'])\n"

Runs = Callable[[bytes], bytes]


def payload(call: str, tests: int) -> bytes:
    """A program with so many tests, by calls of a function or by stdin."""
    inputs: list[object] = [[[n], {}] if call else f"{n}\n" for n in range(tests)]
    asked = {
        "source": SOURCE if call else READS,
        "call": call,
        "inputs": inputs,
        "tests_s": [10.0] * tests,
        "watched": False,
        "stop": True,
    }
    return json.dumps(asked).encode()


def inside(asked: bytes) -> Runs:
    """The runner of a program, as the verifier `code` chooses it."""
    return program_runs.calls if json.loads(asked)["call"] else program_runs.run


def sandboxed(mode: Isolation) -> Runs:
    """A warm sandbox."""
    sandbox = HostSandbox(detect(mode.value), [INSIDE, *USUAL])
    sandbox.start()

    def runs(asked: bytes) -> bytes:
        work = Work(function=f"{INSIDE}:{inside(asked).__name__}", payload=asked, limits=LIMITS)
        outcome = sandbox.run(work)
        assert outcome.status is Status.OK, outcome
        return outcome.result

    return runs


def forked(asked: bytes) -> bytes:
    """The same in a fork of this process, with no isolation at all."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            folder = tempfile.mkdtemp()
            os.chdir(folder)
            with os.fdopen(write, "wb") as result:
                result.write(inside(asked)(asked))
            shutil.rmtree(folder)
        finally:  # also after an error: a child that went on would be a second caller
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as result:
        found = result.read()
    os.waitpid(pid, 0)
    return found


def started(asked: bytes) -> bytes:
    """The same in a bubblewrap and a Python of its own, with the same imports as the warm one."""
    words = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent"]
    for path in shells.readable():
        words += ["--ro-bind-try", path, path]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/tmp"]
    source = f"import json, sys, {', '.join(USUAL)}\n{SOURCE}"
    source += "print(json.dumps([f(n) for n in json.load(sys.stdin)]))"
    given = json.dumps([one[0][0] for one in json.loads(asked)["inputs"]])
    done = subprocess.run(
        [*words, sys.executable, "-I", "-c", source], input=given.encode(), stdout=subprocess.PIPE, check=True
    )
    return done.stdout


@dataclass(frozen=True, slots=True)
class CallCost:
    """One call of a way: processor seconds, and the median on the clock."""

    cpu_s: float
    wall_s: float


def each(ways: dict[str, Runs], asked: bytes, rounds: int) -> dict[str, CallCost]:
    """Cost of a call of each way; the first round warms up."""
    kept = {child.pid for child in psutil.Process().children()}
    cpu_s = dict.fromkeys(ways, 0.0)
    walls_s: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, runs in ways.items():
            before_s = used_s(kept)
            for _ in range(IN_A_ROW):
                began_s = time.perf_counter()
                runs(asked)
                walls_s[name] += [time.perf_counter() - began_s] if turn else []
            cpu_s[name] += used_s(kept) - before_s if turn else 0.0
    return {
        name: CallCost(cpu_s[name] / (rounds * IN_A_ROW), statistics.median(walls_s[name])) for name in ways
    }


def used_s(kept: set[int]) -> float:
    """Processor time of this process and of all below it, dead or alive. kept: its children that stay; others
    are waited for, because bubblewrap leaves its children to the process that adopts them."""
    while {child.pid for child in psutil.Process().children()} - kept:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
    dead = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + dead.ru_utime + dead.ru_stime
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def measure() -> Sequence[Row]:
    """The rows of the table. Raises `NoSandbox` where a mode does not work."""
    for name in USUAL:
        __import__(name)
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    modes = {mode.value: sandboxed(mode) for mode in Isolation}
    rows: list[Row] = []

    def add(what: str, peer: str, peer_runs: Runs, asked: bytes, rounds: int, times: int) -> None:
        took = each({**modes, peer: peer_runs}, asked, rounds)
        for name in modes:
            ours, theirs = took[name], took[peer]
            label = f"{what}, {name}"
            rows.append(Row(label, "1/s of CPU", times / ours.cpu_s, peer, times / theirs.cpu_s))
            rows.append(Row(label, "1/s", times / ours.wall_s, peer, times / theirs.wall_s))

    add("programs", "bwrap + python", started, payload("f", 1), ROUNDS, 1)
    add(f"tests, {TESTS} a program, calls", "no isolation", forked, payload("f", TESTS), TEST_ROUNDS, TESTS)
    add(f"tests, {TESTS} a program, stdin", "no isolation", forked, payload("", TESTS), TEST_ROUNDS, TESTS)
    print("; ".join(f"{key} {value}" for key, value in machine().items()))
    return rows


if __name__ == "__main__":
    run(
        "reward.sandbox",
        "Programs of a model: warm forks against a start for each, and no isolation",
        measure,
    )
