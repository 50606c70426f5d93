"""Rust router with its one Python client, measured in the same run as ours.

As many fake workers as we have streams, as many concurrent requests on each as our frames have rows. The
router, the workers and the client may use every core.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.runtime.harness import ENVIRONMENTS, ROOT
from bench.runtime.task import percentile
from bench.token_plane.goals import PARSED, PASSED
from bench.token_plane.sizes import Sizes, SystemResult

READY_S = 30.0
LIMIT_S = 60.0  # for one client: 1000 streams take seconds to open


def environment() -> Path | None:
    """The Python of the router's environment; None where `make bench-peers` did not make it."""
    chosen = os.environ.get("GLEANER_BENCH_ROUTER", "")
    python = Path(chosen) if chosen else ENVIRONMENTS / "router" / "bin" / "python"
    return python if python.exists() else None


def measure(python: Path, sizes: Sizes, scratch: Path) -> list[SystemResult]:
    """The parsed path and the pass-through, for each number of rows."""
    found = []
    with _router(python, sizes, scratch) as (url, router):

        def once(way: str, rows: int, pace_s: float = 0.0) -> _Run:
            return _once(python, way, url, router, rows * sizes.streams, sizes, pace_s)

        for rows in sizes.rows:
            parsed, passed = [], []
            for _ in range(sizes.repeats):
                parsed.append(once("parse", rows))
                passed.append(once("count", rows))
            found.append(_found(PARSED, rows, parsed, once("parse", rows, sizes.pace_s)))
            found.append(_found(PASSED, rows, passed, None))
    return found


class _Run:
    """Result of one client."""

    def __init__(
        self, tokens: int, seconds: float, cpu_s: float, router_s: float, times: list[float]
    ) -> None:
        self.rate = tokens / seconds
        self.cpu_s_per_m = cpu_s / tokens * 1e6 if tokens else float("nan")
        self.router_s_per_m = router_s / tokens * 1e6 if tokens else float("nan")
        self.times = times


def _found(system: str, rows: int, runs: Sequence[_Run], paced: _Run | None) -> SystemResult:
    best = max(runs, key=lambda run: run.rate)
    times, full = (paced.times if paced is not None else []), best.times
    return SystemResult(
        system,
        rows,
        tokens_per_s=best.rate,
        cpu_s_per_m=best.cpu_s_per_m,
        p50_ms=percentile(times, 0.5) * 1e3,
        p99_ms=percentile(times, 0.99) * 1e3,
        full_p50_ms=percentile(full, 0.5) * 1e3,
        full_p99_ms=percentile(full, 0.99) * 1e3,
        router_cpu_s_per_m=best.router_s_per_m,
        runs=[run.rate for run in runs],
    )


def _once(
    python: Path, way: str, url: str, router: psutil.Process, streams: int, sizes: Sizes, pace_s: float
) -> _Run:
    orders = {"way": way, "url": url, "streams": streams, "pace_s": pace_s, "limit_s": LIMIT_S}
    orders |= {"warm_s": sizes.warm_s, "seconds": sizes.seconds}
    argv = [str(python), "-m", "bench.token_plane.router_client", json.dumps(orders)]
    client = subprocess.Popen(argv, cwd=ROOT, env=_env(), stdout=subprocess.PIPE)
    try:
        assert client.stdout is not None
        begin_s = json.loads(client.stdout.readline() or "{}").get("begin_s")
        if begin_s is None:
            raise RuntimeError(f"the client of the router measured nothing ({way}, {streams} streams)")
        time.sleep(max(0.0, begin_s - time.monotonic()))
        before = _cpu_s(router)
        time.sleep(max(0.0, begin_s + sizes.seconds - time.monotonic()))
        router_s = _cpu_s(router) - before
        out, _ = client.communicate(timeout=LIMIT_S)
    finally:
        client.kill()
        client.wait()
    reply = json.loads(out)
    return _Run(reply["tokens"], sizes.seconds, reply["cpu_s"], router_s, reply["times"])


@contextmanager
def _router(python: Path, sizes: Sizes, scratch: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The workers, and the router in front of them once it serves: its address and its process."""
    ports = _free_ports(sizes.streams + 2)
    workers, own, metrics = ports[:-2], ports[-2], ports[-1]
    running = []
    log = (scratch / "router.log").open("ab")
    try:
        for port in workers:
            argv = [sys.executable, "-m", "bench.token_plane.fake_worker"]
            argv += [str(port), str(sizes.burst)]
            running.append(subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log))
        for port in workers:
            _answers(f"http://127.0.0.1:{port}/health")
        argv = [str(python), "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(own)]
        argv += ["--policy", "round_robin", "--prometheus-port", str(metrics), "--log-level", "error"]
        argv += ["--max-concurrent-requests", "-1"]
        argv += ["--worker-urls", *(f"http://127.0.0.1:{port}" for port in workers)]
        router = subprocess.Popen(argv, cwd=scratch, env=_env(), stdout=log, stderr=log)
        running.append(router)
        url = f"http://127.0.0.1:{own}"
        _answers(f"{url}/health")
        yield url, psutil.Process(router.pid)
    finally:
        for process in reversed(running):
            process.kill()
            process.wait()
        log.close()


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _free_ports(count: int) -> list[int]:
    """Ports on which no process listens now."""
    sockets = []
    try:
        for _ in range(count):
            one = socket.socket()
            one.bind(("127.0.0.1", 0))
            sockets.append(one)
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _answers(url: str) -> None:
    until = time.monotonic() + READY_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2.0):
                return
        except OSError as problem:
            if time.monotonic() > until:
                raise TimeoutError(f"{url} does not answer: {problem}") from problem
        time.sleep(0.05)
