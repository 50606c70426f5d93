"""Isolation: a stuck instance delays neither the manager nor other streams."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from rollout_world import submission

from bench.manager_process import ManagerProcess, manager_process
from bench.token_plane.firehose import WEIGHTS, Hold, Holds, Pour, Poured, StreamsTo, Where
from gleaner.actors.protocol.instances import Registered, RegisterInstance, ServeWeights
from gleaner.actors.protocol.rollout import SubmitBatch, Weights
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.configs.schema import Config, Rollout
from gleaner.supervisor import Actor, Done, handles
from gleaner.supervisor.testing import TEST_LIMITS, TestSystem

FIRST, SECOND, THIRD = (
    Weights(version=version, root=bytes([version]) * 32, sources=()) for version in (1, 2, 3)
)


class ServingWorker(Actor):
    """A worker that records the versions to serve, and blocks while it is stuck."""

    def __init__(self, stuck: asyncio.Event | None = None) -> None:
        self._stuck = stuck
        self.versions: list[int] = []
        self.changed = asyncio.Event()

    @handles(ServeWeights)
    async def serve(self, message: ServeWeights) -> None:
        self.versions.append(message.weights.version)
        self.changed.set()
        if self._stuck is not None:
            await self._stuck.wait()


async def until_ordered(worker: ServingWorker, version: int) -> None:
    async with asyncio.timeout(60.0):
        while not worker.versions or worker.versions[-1] != version:
            worker.changed.clear()
            await worker.changed.wait()


async def test_full_mailbox_of_an_instance_delays_nothing_else(
    tmp_path: Path,
) -> None:
    loose = asyncio.Event()
    stuck, well = ServingWorker(loose), ServingWorker()
    async with TestSystem(tmp_path) as test:
        test.spawn("rollout/balancer", lambda: LoadBalancer(4))
        test.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(Config())))
        for name, worker in (("stuck/engine", stuck), ("well/engine", well)):
            address = test.spawn(name, lambda worker=worker: worker)
            register = RegisterInstance(
                instance=name, worker=address, kind="preemptible", slots=8, received=0
            )
            await test.ask("rollout/manager", register, Registered)
        for _ in range(TEST_LIMITS.mailbox + 1):  # one is being handled, the others wait
            await test.tell("stuck/engine", ServeWeights(weights=FIRST))
            await asyncio.sleep(0)
        for weights in (SECOND, THIRD):
            batch = submission(f"step-{weights.version}", version=weights.version)
            await test.ask(
                "rollout/manager", SubmitBatch(batch=batch, weights=weights), Done, deadline_s=60.0
            )
        await until_ordered(well, THIRD.version)
        assert stuck.versions == [FIRST.version]
        loose.set()
        await until_ordered(stuck, THIRD.version)  # without the older version after the newer one


async def test_rejoining_instance_waits_for_no_commit(tmp_path: Path) -> None:
    well = ServingWorker()
    async with TestSystem(tmp_path) as test:
        test.spawn("rollout/balancer", lambda: LoadBalancer(4))
        test.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(Config())))
        address = test.spawn("well/engine", lambda: well)
        register = RegisterInstance(
            instance="well/engine", worker=address, kind="preemptible", slots=8, received=0
        )
        await test.ask("rollout/manager", register, Registered)
        before = len((await test.system._journals.read("rollout/manager"))[1])
        test.kill("rollout/manager")
        test.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(Config())))
        await test.ask("rollout/manager", register, Registered)
        assert len((await test.system._journals.read("rollout/manager"))[1]) == before


PACE_S = 0.02
ROWS = 16
WELL, ILL = ("well-1/engine", "well-2/engine"), "ill/engine"
SECONDS = 0.8
TRIES = 20
"""A real slowdown repeats in each try; a wait for the machine does not."""


async def poured(manager: ManagerProcess) -> tuple[int, float]:
    """What the well instances deliver at the pace of an engine: tokens, and the median time of a frame."""
    begin_s = time.monotonic() + 0.1
    order = Pour(begin_s=begin_s, end_s=begin_s + SECONDS, every_s=PACE_S)
    asks = [manager.system.ask(name, order, deadline_s=60.0, expect=Poured) for name in WELL]
    found = await asyncio.gather(*asks)
    times = sorted(second for one in found for second in array("d", one.times))
    return sum(one.tokens for one in found), times[len(times) // 2]


async def until_all_serve(manager: ManagerProcess) -> None:
    async with asyncio.timeout(60.0):
        while (await manager.figures()).serving_preemptible < 3:
            await asyncio.sleep(0.05)


async def until_they_hold(manager: ManagerProcess, rows: int) -> None:
    async with asyncio.timeout(60.0):
        for name in (*WELL, ILL):
            while (await manager.system.ask(name, Hold(), deadline_s=30.0, expect=Holds)).tickets < rows:
                await asyncio.sleep(0.02)


def instances(manager: ManagerProcess, folder: Path, names: Sequence[str]) -> subprocess.Popen[bytes]:
    orders = {"process": names[0].partition("/")[0], "scratch": str(folder), "names": names, "cores": []}
    orders |= {"head": manager.head.endpoint, "slots": ROWS, "ring_frames": 256}
    return subprocess.Popen([sys.executable, "-m", "bench.token_plane.instances", json.dumps(orders)])


@pytest.mark.realprocess
@pytest.mark.alone
async def test_streams_continue_beside_misbehaving_instances(
    tmp_path: Path,
) -> None:
    config = Config(rollout=Rollout(max_pending=64, max_new_tokens=1 << 22))
    running: list[subprocess.Popen[bytes]] = []
    async with manager_process(tmp_path, config) as manager:
        try:
            running = [instances(manager, tmp_path, WELL), instances(manager, tmp_path, [ILL])]
            await until_all_serve(manager)
            batch = submission("step-1", groups=3, samples=ROWS)
            batch = msgspec.structs.replace(batch, max_new_tokens=1 << 22)
            await manager.system.ask(
                "rollout/manager", SubmitBatch(batch=batch, weights=WEIGHTS), expect=Done, deadline_s=30.0
            )
            await until_they_hold(manager, ROWS)
            tokens, median_s = await poured(manager)

            pour_on = Pour(begin_s=0.0, end_s=time.monotonic() + 60.0)
            flooding = asyncio.create_task(manager.system.ask(ILL, pour_on, deadline_s=60.0, expect=Poured))
            await asyncio.sleep(0.2)
            running[1].send_signal(signal.SIGSTOP)  # with a full ring and its own requests
            script = Path(__file__).with_name("bad_instance.py")
            endpoint = (
                await manager.system.ask(WELL[0], Where(), deadline_s=30.0, expect=StreamsTo)
            ).endpoint
            bad = subprocess.Popen([sys.executable, script, endpoint, "60"], stdout=subprocess.PIPE)
            running.append(bad)
            assert bad.stdout is not None
            assert await asyncio.to_thread(bad.stdout.readline) == b"ready\n"
            refused = (await manager.figures()).refused.get("fenced", 0)
            for _ in range(TRIES):
                beside, beside_s = await poured(manager)
                if beside > 0.6 * tokens and beside_s < 3 * median_s:
                    break
            else:
                pytest.fail(f"{tokens} tokens, {median_s:.4f} s a frame before; now {beside}, {beside_s:.4f}")
            flooding.cancel()
            assert (await manager.figures()).refused["fenced"] > refused + 100, "the flood did not arrive"
        finally:
            for process in running:
                process.kill()
                process.wait()
