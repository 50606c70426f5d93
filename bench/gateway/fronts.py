"""Fronts: the two fronts and their servers as started and measured processes."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from bench.gateway.client import LoadResult
from bench.runtime.harness import ROOT

READY_S = 300.0
OURS, ROUTER = "rlctl gateway", "sglang-router"

Servers = list[tuple[str, psutil.Process]]
"""URL and process of each."""


@dataclass(frozen=True, slots=True)
class Front:
    """A front that serves."""

    name: str
    url: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """User and system time, of it and of all its descendants."""
        return sum(
            one.cpu_times().user + one.cpu_times().system
            for one in [self.process, *self.process.children(recursive=True)]
        )


@contextmanager
def fake_servers(count: int, step_ms: float, most: int, log: Path) -> Iterator[Servers]:
    """Servers that decode nothing: their URLs and processes."""
    commands = []
    for port in free_ports(count):
        argv = [sys.executable, "-m", "bench.gateway.fake_server", str(port), str(step_ms), str(most)]
        commands.append((f"http://127.0.0.1:{port}", argv))
    with _running(commands, log, "/server_info") as found:
        yield found


@contextmanager
def real_servers(python: Path, model: Path, count: int, log: Path) -> Iterator[Servers]:
    """SGLang on this machine's CPU."""
    commands = []
    for port in free_ports(count):
        argv = [str(python), "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port)]
        argv += ["--host", "127.0.0.1", "--device", "cpu", "--dtype", "float32", "--attention-backend"]
        argv += ["torch_native", "--sampling-backend", "pytorch", "--cuda-graph-backend-decode", "disabled"]
        argv += [
            "--cuda-graph-backend-prefill",
            "disabled",
            "--max-total-tokens",
            "65536",
            "--log-level",
            "error",
        ]
        argv += ["--max-running-requests", "64", "--context-length", "1024", "--mem-fraction-static", "0.5"]
        argv += ["--sleep-on-idle", "--skip-tokenizer-init"]
        commands.append((f"http://127.0.0.1:{port}", argv))
    with _running(commands, log, "/health") as found:
        yield found


@contextmanager
def front(name: str, python: Path, urls: Sequence[str], scratch: Path) -> Iterator[Front]:
    """`name` in front of these servers, once it serves. python: of the router's environment."""
    port, metrics = free_ports(2)
    url = f"http://127.0.0.1:{port}"
    if name == OURS:
        argv = [sys.executable, "-m", "gleaner.rlctl", "gateway", "--listen", f"127.0.0.1:{port}"]
        argv += ["--state-dir", str(scratch / f"gateway-{port}")]
        argv += [word for one in urls for word in ("--engine-url", one)]
    else:
        argv = [str(python), "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
        argv += ["--policy", "round_robin", "--prometheus-port", str(metrics), "--log-level", "error"]
        argv += ["--max-concurrent-requests", "-1", "--worker-urls", *urls]
    with _running([(url, argv)], scratch / f"{port}.log", "/health") as found:
        _serves(url)
        yield Front(name, url, found[0][1])


def put_load(url: str, *, requests: int, together: int, tokens: int, limit_s: float) -> LoadResult:
    """The client's result."""
    orders = {"url": url, "requests": requests, "together": together, "tokens": tokens, "limit_s": limit_s}
    argv = [sys.executable, "-m", "bench.gateway.client", json.dumps(orders)]
    done = subprocess.run(argv, cwd=ROOT, env=_env(), capture_output=True, timeout=limit_s + 60, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.decode()[-2000:])
    return msgspec.json.decode(done.stdout, type=LoadResult)


def _serves(url: str) -> None:
    """Wait until one short request returns: a front may answer before it knows a server."""
    until_s = time.monotonic() + READY_S
    while True:
        seen = put_load(url, requests=2, together=2, tokens=4, limit_s=READY_S)
        if not seen.errors and not seen.broken:
            return
        if time.monotonic() > until_s:
            raise TimeoutError(f"{url} serves nothing: {seen.errors}")
        time.sleep(0.5)


@contextmanager
def _running(commands: Sequence[tuple[str, list[str]]], log: Path, answers: str) -> Iterator[Servers]:
    running: list[subprocess.Popen[bytes]] = []
    with log.open("ab") as out:
        try:
            for _, argv in commands:
                running.append(subprocess.Popen(argv, cwd=log.parent, env=_env(), stdout=out, stderr=out))
            for (url, _), process in zip(commands, running, strict=True):
                _answers(f"{url}{answers}", process, log)
            yield [(url, psutil.Process(one.pid)) for (url, _), one in zip(commands, running, strict=True)]
        finally:
            for process in running:
                if process.poll() is None:
                    kill(psutil.Process(process.pid))
                process.wait()


def kill(process: psutil.Process) -> None:
    """SIGKILL to it and to all below it."""
    for one in [*process.children(recursive=True), process]:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue


def _answers(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until_s = time.monotonic() + READY_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2.0):
                return
        except OSError as problem:
            if process.poll() is not None or time.monotonic() > until_s:
                tail = log.read_text(errors="replace")[-2000:]
                raise TimeoutError(f"{url} does not answer: {problem}\n{tail}") from problem
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Ports on which no process listens now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
