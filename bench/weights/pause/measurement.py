"""Measuring of one engine, from the first host that joins to the last version.

Owns the measurements and their order.
"""

import asyncio
import shutil
import statistics
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
import uvloop

from bench.runtime.harness import ROOT
from bench.weights.pause.baseline import Baseline
from bench.weights.pause.cluster import START_S, Cluster, Host, cluster
from bench.weights.pause.flips import Flip, Times, flip
from bench.weights.pause.joiners import Join, join
from bench.weights.pause.load import Load, ThroughManager
from bench.weights.pause.versions import GIB, Layout
from gleaner.actors.cluster.job import memory_dir
from gleaner.actors.engine.servers.http import HttpWire
from gleaner.actors.engine.servers.port import ServerDied, ServerRefused
from gleaner.actors.engine.servers.server_process import free_port
from gleaner.actors.model.qwen3_config import Qwen3Config
from gleaner.configs.schema import Config, Engine, Rollout

SGLANG_ON_A_CPU = (
    *("--device", "cpu", "--dtype", "bfloat16", "--attention-backend", "torch_native"),
    *("--sampling-backend", "pytorch", "--cuda-graph-backend-decode", "disabled"),
    *("--cuda-graph-backend-prefill", "disabled", "--mem-fraction-static", "0.5"),
)
BASELINE = "baseline"
LOOK_S = 0.1


class Sizes(msgspec.Struct, frozen=True):
    """Sizes of the run: versions of each kind, rounds of the baseline, hosts that join; the load."""

    model: Qwen3Config = GIB
    versions: int = 5
    baselines: int = 3
    joins: int = 2
    load: Load = Load(together=4, prompt=8, response=48)
    times: Times = Times()
    shares: tuple[float, ...] = (1.0, 0.01)


@dataclass(frozen=True, slots=True)
class EngineResult:
    """Results for one engine."""

    flips: Sequence[Flip]
    joins: Sequence[Join]


def measure(engine: str, python: Path, sizes: Sizes, say: Callable[[str], None]) -> EngineResult:
    """`engine`: builtin, or sglang with the interpreter of its environment. Its processes and their resources
    are gone when this returns."""
    environment = str(python.absolute().parents[1]) if engine == "sglang" else ""
    config = Config(
        engine=Engine(
            kind="sglang" if engine == "sglang" else "builtin",
            environment=environment,
            slots=2 * sizes.load.together,
            max_prompt_tokens=sizes.load.prompt,
            args=[*SGLANG_ON_A_CPU, "--max-total-tokens", "4096"] if environment else [],
        ),
        rollout=Rollout(max_new_tokens=sizes.load.response, max_pending=2 * sizes.load.together),
    )
    with (
        tempfile.TemporaryDirectory(prefix="gleaner-pause-") as scratch,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_measure(engine, Path(scratch), config, sizes, say))


async def _measure(
    engine: str, scratch: Path, config: Config, sizes: Sizes, say: Callable[[str], None]
) -> EngineResult:
    flips: list[Flip] = []
    joins: list[Join] = []
    async with cluster(scratch, config, Layout.of(sizes.model)) as running:
        load = ThroughManager(running.manager.system, sizes.load, sizes.model.vocab_size)
        load.begin()
        host: Host | None = None
        for number in range(sizes.joins):
            if host is not None:
                await asyncio.to_thread(running.stop, host)
                await running.publish(1.0)  # a version that no host has had
            host, joined = await join(running, f"late{number}", load, engine)
            joins.append(joined)
            say(f"{engine}: joined, first token after {joined.first_s:.2f} s")
        assert host is not None, "at least one joins"
        for share in sizes.shares:
            for _ in range(sizes.versions):
                flips.append(await flip(running, host, load, engine, share, sizes.times))
                say(_line(flips[-1]))
        await load.end()
        if sizes.baselines:
            async with _server(engine, running, host, scratch, sizes.load) as baseline:
                for one in await baseline.measured(sizes.load, sizes.baselines, sizes.times):
                    flips.append(one)
                    say(_line(one))
    return EngineResult(flips, joins)


def _line(one: Flip) -> str:
    paused = f"paused {one.pause_s:.2f} s (usual {one.usual_s:.2f})"
    return f"{one.engine}, {one.way}: {paused}, lag {one.lag_s:.2f} s"


@asynccontextmanager
async def _server(
    engine: str, running: Cluster, host: Host, scratch: Path, load: Load
) -> AsyncIterator[Baseline]:
    """A server used without a cluster: that of the idle host, or the builtin engine as a server."""
    folder = memory_dir(running.job, BASELINE)
    baseline = Baseline(engine, "", running.image(), running.layout, folder)
    baseline.prepare()
    try:
        if engine == "sglang":
            baseline.url = _url_below(host.processes["engine"].pid)
            yield baseline
            return
        await asyncio.to_thread(running.stop, host)
        baseline.copy()
        port, tokens = free_port(), str(load.prompt + load.response)
        baseline.url = f"http://127.0.0.1:{port}"
        argv = [sys.executable, "-m", "gleaner.rlctl", "engine", "serve", "--model", str(folder)]
        argv += ["--listen", f"127.0.0.1:{port}", "--max-tokens", tokens]
        with (scratch / "server.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*argv, stdout=log, stderr=log, cwd=ROOT)
        try:
            await _until_healthy(baseline.url, process, scratch / "server.log")
            yield baseline
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _until_healthy(url: str, process: Process, log: Path) -> None:
    http = HttpWire(url)
    try:
        async with asyncio.timeout(START_S):
            while True:
                if process.returncode is not None:
                    raise RuntimeError(f"the server ended: {log.read_text(errors='replace')[-2000:]}")
                try:
                    await http.look("/health")
                    return
                except (ServerDied, ServerRefused):
                    await asyncio.sleep(LOOK_S)
    finally:
        await http.close()


def _url_below(pid: int) -> str:
    """Address of the server that a worker's process has started."""
    for child in psutil.Process(pid).children(recursive=True):
        words = child.cmdline()
        if "sglang.launch_server" in words and "--port" in words:
            return f"http://127.0.0.1:{words[words.index('--port') + 1]}"
    raise RuntimeError(f"process {pid} has no server")


def median(some: Sequence[float]) -> float:
    """0 for none."""
    return statistics.median(some) if some else 0.0
