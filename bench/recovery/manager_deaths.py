"""Deaths of the manager with thousands of requests in flight.

Measured until the first new frame is acknowledged. Its process is killed and started again by its supervisor,
as on the head; the instances are real workers on modelled engines, which decode on meanwhile.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvloop

from bench.manager_process import ManagerProcess, manager_process
from bench.recovery.observer import ReturnSeen, WatchReturn
from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.rollout import ReleaseBatch, RolloutFigures, SubmitBatch, Weights
from gleaner.configs.load import dump
from gleaner.configs.schema import Config, Engine, Rollout
from gleaner.supervisor import Done

WEIGHTS = Weights(version=1, root=b"\1" * 32, sources=())
PROCESSES = 2  # that the instances share
SLOTS = 250
PROMPT_TOKENS = 64
GROUP = 8
ANSWER = 1 << 16  # tokens: more than any request gets here
READY_S = 120.0
RETURN_S = 60.0


@dataclass(frozen=True, slots=True)
class Return:
    """Seconds from SIGKILL to the first acknowledgement of a frame made after it, of the first and of the
    last instance. `tokens`: collected before; `resent_ms`: how long before the death the oldest frame was
    made that was sent again; `cpu_s`: processor seconds of the new manager until all were back, with its
    start and its imports: about the time on an idle machine."""

    requests: int
    tokens: int
    first_s: float
    all_s: float
    resent_frames: int
    resent_ms: float
    generated_twice: int
    lost: int
    cpu_s: float


def measure(
    folder: Path, requests: int, kills: int, step_s: float, apart_s: float, say: Callable[[str], None]
) -> list[Return]:
    """So many deaths, `apart_s` of decoding before each."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(folder, requests, kills, step_s, apart_s, say))


async def _measure(
    folder: Path, requests: int, kills: int, step_s: float, apart_s: float, say: Callable[[str], None]
) -> list[Return]:
    config = Config(engine=Engine(slots=SLOTS), rollout=Rollout(max_pending=SLOTS, max_new_tokens=ANSWER))
    instances = -(-requests // SLOTS)
    file = folder / "settings.toml"
    file.write_text(dump(config))
    found = []
    async with manager_process(folder, config) as manager:
        with _instances(manager, folder, file, instances, step_s):
            await _submit(manager, "first", 1)  # a host with weights to serve announces them
            await _until(manager, lambda now: now.serving_preemptible >= instances, "instances that serve")
            await _submit(manager, "bench", requests)
            await _release(manager, "first")
            await _until(manager, lambda now: now.executing >= requests, "requests in flight")
            for _ in range(kills):
                await asyncio.sleep(apart_s)
                found.append(await _kill(manager, requests))
                say(f"{requests} requests, {found[-1].tokens:,} tokens: {found[-1].first_s:.3f} s")
            await _release(manager, "bench")
    return found


async def _kill(manager: ManagerProcess, requests: int) -> Return:
    before = await manager.figures()
    killed_s = time.monotonic() + 0.1  # the witnesses are notified first
    watch = WatchReturn(killed_s=killed_s, until_s=killed_s + RETURN_S)
    asks = [
        asyncio.create_task(
            manager.system.ask(
                f"engines-{number}/witness", watch, deadline_s=RETURN_S + READY_S, expect=ReturnSeen
            )
        )
        for number in range(PROCESSES)
    ]
    await asyncio.sleep(killed_s - time.monotonic())
    psutil.Process(manager.pid).kill()
    seen = await asyncio.gather(*asks)
    cpu_s = manager.cpu_s()
    back = sorted(time_s for one in seen for time_s in one.back_s)
    if len(back) < sum(one.instances for one in seen):
        raise TimeoutError(f"only {len(back)} instances have a manager again after {RETURN_S:.0f} s")
    after = await manager.figures()
    return Return(
        requests,
        before.tokens_collected,
        back[0],
        back[-1],
        sum(one.resent for one in seen),
        max(one.resent_age_s for one in seen) * 1e3,
        after.tokens_generated_twice,
        after.tokens_lost,
        cpu_s,
    )


@contextmanager
def _instances(
    manager: ManagerProcess, folder: Path, config: Path, count: int, step_s: float
) -> Iterator[None]:
    running = []
    try:
        for number in range(PROCESSES):
            share = len(range(number, count, PROCESSES))
            orders = {
                "process": f"engines-{number}",
                "config": str(config),
                "scratch": str(folder),
                "head": manager.head.endpoint,
                "count": share,
                "step_s": step_s,
            }
            argv = [sys.executable, "-m", "bench.recovery.instances", json.dumps(orders)]
            running.append(subprocess.Popen(argv))
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


async def _release(manager: ManagerProcess, batch: str) -> None:
    await manager.system.ask(MANAGER, ReleaseBatch(batch=batch), deadline_s=READY_S, expect=Done)


async def _submit(manager: ManagerProcess, name: str, requests: int) -> None:
    prompts = tuple(
        Prompt(
            split="train",
            index=number,
            tokens=tuple(range(PROMPT_TOKENS)),
            seeds=tuple(range(min(GROUP, requests - start))),
        )
        for number, start in enumerate(range(0, requests, GROUP))
    )
    batch = BatchSubmitted(batch=name, version=WEIGHTS.version, prompts=prompts, max_new_tokens=ANSWER)
    order = SubmitBatch(batch=batch, weights=WEIGHTS)
    await manager.system.ask(MANAGER, order, deadline_s=READY_S, expect=Done)


async def _until(manager: ManagerProcess, holds: Callable[[RolloutFigures], bool], what: str) -> None:
    until_s = time.monotonic() + READY_S
    while not holds(await manager.figures()):
        if time.monotonic() > until_s:
            raise TimeoutError(f"{what}: not within {READY_S:.0f} s")
        await asyncio.sleep(0.1)
