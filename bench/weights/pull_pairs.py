"""Pairs: for each way a permanent source and receiver, with the cost of transfers.

Owns the processes. A way that does not run here gives the reason.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from bench.runtime.harness import ENVIRONMENTS, ROOT

TRANSFER_S = 300.0
OURS, LIMIT, IPERF, MOONCAKE, NIXL = "gleaner", "recv_into", "iperf3", "Mooncake", "NIXL"
PEER_ENDS = Path(__file__).with_name("pull_peer_ends.py")


class CannotRun(Exception):
    """A way does not run on this machine; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Way:
    """Way of the transfer, and number of connections (0: the peer's default)."""

    system: str
    connections: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one transfer: bytes, wall-clock seconds, and processor seconds of both ends."""

    nbytes: int
    seconds: float
    cpu_s: float


class Pair(Protocol):
    """Two permanent ends."""

    def transfer(self) -> Cost:
        """Transfer all of it, once. Raises `CannotRun`."""

    def close(self) -> None:
        """Stop both."""


class Ends:
    """Source and receiver, processes with the protocol of `pull_ends`."""

    def __init__(self, command: list[str], way: str, connections: int, source: Path, target: Path) -> None:
        self._nbytes = target.stat().st_size
        self._processes: list[subprocess.Popen[str]] = []
        try:
            where = self._start([*command, "serve", way, str(source), str(connections)])
            pull = [*command, "pull", way, str(target), str(connections), json.dumps(where)]
            if self._start(pull) != "ready":
                raise CannotRun("the receiver did not start")
            self._all(signal.SIGSTOP)
        except BaseException:
            self.close()
            raise

    def transfer(self) -> Cost:
        receiver = self._processes[1]
        assert receiver.stdin is not None
        self._all(signal.SIGCONT)
        before = _cpu_s(self._processes)
        receiver.stdin.write("\n")
        receiver.stdin.flush()
        seconds = self._line(receiver)
        assert isinstance(seconds, float)
        cost = Cost(self._nbytes, seconds, _cpu_s(self._processes) - before)
        self._all(signal.SIGSTOP)  # an engine that polls while it is idle would slow the others down
        return cost

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def _all(self, what: signal.Signals) -> None:
        for process in self._processes:
            process.send_signal(what)

    def _start(self, command: list[str]) -> object:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self._processes.append(process)
        return self._line(process)

    def _line(self, process: subprocess.Popen[str]) -> object:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise CannotRun(f"its process ended with {process.wait(TRANSFER_S)}")
        return json.loads(line)


class Iperf:
    """iperf3, which sends from one buffer and discards the received bytes."""

    def __init__(self, connections: int, nbytes: int) -> None:
        self._connections, self._nbytes = connections, nbytes
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = str(free.getsockname()[1])
        try:
            self._server = subprocess.Popen(
                ["iperf3", "-s", "-B", "127.0.0.1", "-p", self._port],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except FileNotFoundError:
            raise CannotRun("iperf3 is not installed: apt-get install iperf3") from None
        time.sleep(1.0)  # it does not report when it listens

    def transfer(self) -> Cost:
        count = ["-P", str(self._connections), "-n", str(self._nbytes), "-l", "1M"]
        before = _cpu_s([self._server])
        client = subprocess.run(
            ["iperf3", "-c", "127.0.0.1", "-p", self._port, *count, "-J"],
            capture_output=True,
            timeout=TRANSFER_S,
            check=False,
        )
        report = json.loads(client.stdout)
        if "error" in report:
            raise CannotRun(f"iperf3: {report['error']}")
        received, share = report["end"]["sum_received"], report["end"]["cpu_utilization_percent"]
        ours_s = share["host_total"] / 100 * received["seconds"]
        cpu_s = _cpu_s([self._server]) - before + ours_s
        return Cost(received["bytes"], received["seconds"], cpu_s)

    def close(self) -> None:
        self._server.kill()
        self._server.wait()


def open_pair(way: Way, source: Path, target: Path) -> Pair:
    """Start both ends. Raises `CannotRun`."""
    if way.system == IPERF:
        return Iperf(way.connections, target.stat().st_size)
    if way.system in (OURS, LIMIT):
        kind = "ours" if way.system == OURS else "blocking"
        command = [sys.executable, "-m", "bench.weights.pull_ends"]
        return Ends(command, kind, way.connections, source, target)
    python = ENVIRONMENTS / "transfer" / "bin" / "python"
    if not python.exists():
        raise CannotRun("`make bench-peers` makes its environment")
    module = {MOONCAKE: "mooncake.engine", NIXL: "nixl_cu12"}[way.system]
    found = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True, check=False)
    if found.returncode:
        raise CannotRun(found.stderr.strip().splitlines()[-1])
    return Ends([str(python), str(PEER_ENDS)], way.system.lower(), way.connections, source, target)


def _cpu_s(processes: list[subprocess.Popen[str]] | list[subprocess.Popen[bytes]]) -> float:
    return sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in processes)
