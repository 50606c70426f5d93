"""Items that are cancelled while they run: their worker is free soon, and no failure is counted."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest
from pipeline_hosts import DOUBLES, HOST, Hosts

from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import CancelScores, ScoreText, Verdict
from gleaner.configs.load import from_tree
from gleaner.supervisor import AskFailed
from gleaner.supervisor.testing import TestSystem

SLEEPS = "import time\ntime.sleep(30)"
RIGHT = "print(2 * int(input()))"
CONFIG = from_tree(
    {
        "task": [{"name": "doubles", "data": "none.jsonl", "verifier": "code"}],
        "reward": {"deadline_s": 60.0, "workers": 1, "host_workers": 1},
    },
    "test",
)


async def until(holds: Callable[[], bool], most_s: float = 60.0) -> None:
    async with asyncio.timeout(most_s):
        while not holds():
            await asyncio.sleep(0.02)


def processes() -> set[int]:
    """The children of this process, and theirs."""
    return {
        one.pid
        for one in psutil.Process().children(recursive=True)
        if one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    }


@pytest.mark.realprocess
async def test_worker_of_a_cancelled_program_is_free_before_the_program_would_end(tmp_path: Path) -> None:
    """On the proxy's own host and on another one: each has a worker, and a program that sleeps."""
    others = processes()  # of tests before it, such as a server of forks
    async with TestSystem(tmp_path) as near, TestSystem(tmp_path, node="far", join=near) as far:
        hosts = Hosts(near, far, tmp_path, CONFIG)
        hosts.start_proxy()
        hosts.start_host()

        def score(name: str, program: str) -> "asyncio.Task[Verdict]":
            ask = ScoreText(
                request=name,
                task="doubles",
                entry=msgspec.json.encode(DOUBLES),
                response=f"```python\n{program}\n```",
                batch="step-1",
            )
            return asyncio.create_task(near.ask(REWARD, ask, Verdict, deadline_s=60.0))

        def figure(name: str) -> tuple[int, int]:
            """Of the proxy, and of the host."""
            cells = near.system.cell(REWARD), far.system.cell(HOST)
            one, other = (
                int(cell.actor.summary()[name]) if cell is not None and cell.actor is not None else 0
                for cell in cells
            )
            return one, other

        await until(lambda: figure("workers") == (1, 1))
        assert (await score("first", RIGHT)).score == 1.0
        # as after a long item: each worker has one at a time, so the two go to two hosts
        near.system.cell(REWARD).actor._dispatch.hosts.took("score", 30.0)  # type: ignore[union-attr]
        idle = len(processes())
        asked = [score(f"sleeps-{n}", SLEEPS) for n in range(2)]
        await until(lambda: len(processes()) > idle + 1)
        running = processes()
        await near.tell(REWARD, CancelScores(requests=["sleeps-0", "sleeps-1"]))
        for one in asked:
            with pytest.raises(AskFailed, match="not needed any more"):
                await one
        async with asyncio.timeout(15.0):  # the programs would sleep for 30 s
            found = await asyncio.gather(*(score(f"next-{n}", RIGHT) for n in range(2)))
        assert [verdict.score for verdict in found] == [1.0, 1.0]
        assert not (running - others) & processes()
        assert figure("workers_lost") == (0, 0)
        assert figure("workers_cancelled") == (1, 1)
