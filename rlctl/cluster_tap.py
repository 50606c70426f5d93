"""Tap on a whole cluster: the messages of every process, read until closed.

Owns the taps: opens one in every process that appears, reads them concurrently so that a stuck process does
not delay others, and closes them at the end. A process closes a tap by itself when it is not read.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gleaner.rlctl.client import Cluster
from gleaner.supervisor import AskFailed, Refused
from gleaner.supervisor.inspection.tap import ReadTap, StartTap, StopTap, TapRecords
from gleaner.transport.wire import Peer

POLL_S = 0.25
"""Between two polls of one process: live to the eye, and 250 records at the highest rate."""
APPEAR_S = 2.0
"""Between two polls for new processes."""
ANSWER_S = 2.0
MAX_QUEUED = 1000
"""Answers that wait to be shown; with a slow terminal the processes skip messages and this queue stays
bounded."""


def reader_name(number: int = 0) -> str:
    """A name of its own for each reader of this process."""
    return f"rlctl-{os.uname().nodename}-{os.getpid()}-{number}"


@asynccontextmanager
async def tapping(cluster: Cluster, wanted: StartTap) -> AsyncIterator[AsyncIterator[TapRecords]]:
    """`async with tapping(...) as passed: async for records in passed`: messages of all processes, as they
    arrive.

    Raises Refused where a process has too many taps already.
    """
    queue: asyncio.Queue[TapRecords | Refused] = asyncio.Queue(MAX_QUEUED)
    followed: dict[Peer, asyncio.Task[None]] = {}
    looking = asyncio.create_task(_look_out(cluster, wanted, queue, followed))
    try:
        yield _records(queue)
    finally:
        looking.cancel()
        for task in followed.values():
            task.cancel()
        await asyncio.gather(looking, *followed.values(), return_exceptions=True)
        await asyncio.gather(*(_stop(cluster, peer, wanted.reader) for peer in followed))


async def _records(queue: "asyncio.Queue[TapRecords | Refused]") -> AsyncIterator[TapRecords]:
    while True:
        answer = await queue.get()
        if isinstance(answer, Refused):
            raise answer
        yield answer


async def _look_out(
    cluster: Cluster,
    wanted: StartTap,
    queue: "asyncio.Queue[TapRecords | Refused]",
    followed: dict[Peer, asyncio.Task[None]],
) -> None:
    """Follow every process, and every new one."""
    while True:
        try:
            peers = await cluster.peers(ANSWER_S)
        except AskFailed:  # the head restarts; those that are followed go on
            peers = {}
        for peer in peers:
            if peer not in followed or followed[peer].done():
                followed[peer] = asyncio.create_task(_follow(cluster, peer, wanted, queue))
        for peer in [peer for peer, task in followed.items() if task.done() and peer not in peers]:
            del followed[peer]
        await asyncio.sleep(APPEAR_S)


async def _follow(
    cluster: Cluster, peer: Peer, wanted: StartTap, queue: "asyncio.Queue[TapRecords | Refused]"
) -> None:
    """Read one process until it is gone."""
    try:
        await cluster.ask_process(peer, wanted, expect=TapRecords, deadline_s=ANSWER_S)
    except Refused as refusal:
        await queue.put(refusal)
        return
    except AskFailed:
        return
    read = ReadTap(reader=wanted.reader)
    while True:
        try:
            answer = await cluster.ask_process(peer, read, expect=TapRecords, deadline_s=ANSWER_S)
        except AskFailed:  # gone, stuck, or without our tap: tried again when it is next seen
            return
        if answer.records or answer.skipped:
            await queue.put(answer)
        await asyncio.sleep(POLL_S)


async def _stop(cluster: Cluster, peer: Peer, reader: str) -> None:
    try:
        await cluster.ask_process(peer, StopTap(reader=reader), expect=TapRecords, deadline_s=POLL_S)
    except AskFailed:
        return  # it closes the tap itself
