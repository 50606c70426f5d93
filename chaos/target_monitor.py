"""Siege: measures a process under attack from outside: alive, responsive, cost.

Owns the measuring. `socket_attacks` makes the attacks; the caller reads the process's own counts.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import psutil

ASK_EVERY_S = 0.02
SETTLE_S = 60.0
"""Stopped handshakes are cut after 2 s, sessions without a connection after 5 s; more on a busy host."""
SPARE_DESCRIPTORS = 4
"""Descriptors that a process may open of its own in that time: a rotated log, a journal's side file."""


@dataclass(slots=True)
class Verdict:
    """`slowest_s`: of all answers; `failures`: asks without an answer; growth after everything was over."""

    asks: int = 0
    slowest_s: float = 0.0
    failures: list[str] = field(default_factory=list)
    alive: bool = False
    grown_bytes: int = 0
    grown_descriptors: int = 0


async def besiege(
    process: psutil.Process, ask: Callable[[], Awaitable[None]], attack: Callable[[], None]
) -> Verdict:
    """Run `attack` in a thread of its own while `ask` is asked again and again, one at a time."""
    verdict = Verdict()
    before_bytes, before_descriptors = process.memory_info().rss, process.num_fds()
    thrown = asyncio.create_task(asyncio.to_thread(attack))
    while not thrown.done():
        await _ask(ask, verdict)
        await asyncio.sleep(ASK_EVERY_S)
    await thrown
    until = time.monotonic() + SETTLE_S
    # one reading decides: connections that wait to be accepted are temporary, leaked ones stay in it
    while (descriptors := process.num_fds()) > before_descriptors + SPARE_DESCRIPTORS:
        if time.monotonic() > until:
            break
        await _ask(ask, verdict)
        await asyncio.sleep(0.1)
    await _ask(ask, verdict)
    verdict.alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    verdict.grown_bytes = process.memory_info().rss - before_bytes
    verdict.grown_descriptors = descriptors - before_descriptors
    return verdict


async def _ask(ask: Callable[[], Awaitable[None]], verdict: Verdict) -> None:
    began = time.monotonic()
    verdict.asks += 1
    try:
        await ask()
    except Exception as problem:  # noqa: BLE001 (any failure is part of the verdict)
        verdict.failures.append(f"{type(problem).__name__}: {problem}")
    verdict.slowest_s = max(verdict.slowest_s, time.monotonic() - began)
