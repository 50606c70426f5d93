"""JobFleet: the fleet of a job, as its gateway shows it; read-only.

Engines join and leave by themselves, and weights are the trainer's: updates from outside are refused with
that reason. A pause holds back the gateway's own requests; those of the job continue.
"""

import asyncio
import re
from array import array
from typing import Protocol

from gleaner.actors.gateway.ask import MAX_ID, Ask, AskError, End, Requests
from gleaner.actors.gateway.fleet import (
    Failed,
    FleetAway,
    Loads,
    NotHere,
    PauseMode,
    Versions,
    Worker,
)
from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.instances import InstancesAre, ListInstances
from gleaner.supervisor import AskFailed, Context

ANSWER_S = 3.0
PROBE_S = 4.0
"""Seconds for one token; clients wait 5 s for `/health_generate`."""
LOOK_S = 0.1
WAIT_S = 250.0
"""Seconds of a pause that waits for running requests; clients give up after 300 s."""
OURS = "a job's engines and weights are its own: they are not changed through its gateway"


class HoldableRequests(Requests, Protocol):
    """Requests that can be held back; implemented by the gateway."""

    @property
    def under_way(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...


class JobFleet:
    """See the module, and `fleet.Fleet`."""

    def __init__(self, ctx: Context, requests: HoldableRequests) -> None:
        self._ctx, self._requests = ctx, requests
        self._probes = 0

    async def workers(self) -> list[Worker]:
        return [
            Worker(
                id=re.sub(r"[^A-Za-z0-9_.-]", "-", one.name)[:MAX_ID],
                url="",
                incarnation=one.incarnation,
                kind=one.kind,
                healthy=one.version is not None and not one.leaving,
                version=one.version,
                running=one.executing,
                waiting=one.pending,
            )
            for one in (await self._look()).instances
        ]

    async def loads(self) -> Loads:
        """Of the gateway's clients alone: a caller that waits for zero must not wait for the job's
        requests."""
        under_way = self._requests.under_way
        return Loads(under_way, 0, self._requests.waiting)

    async def versions(self) -> Versions:
        seen = await self._look()
        served = {one.version for one in seen.instances if one.version is not None}
        return Versions(seen.published, tuple(sorted(served)))

    async def add(self, url: str, api_key: str = "") -> Worker:
        raise NotHere(OURS)

    async def remove(self, worker: str) -> None:
        raise NotHere(OURS)

    async def pause(self, mode: PauseMode) -> int:
        under_way = self._requests.under_way
        self._requests.hold()
        if mode == "abort":
            await self._requests.abort(None)
        elif mode == "wait":
            until_s = self._ctx.now() + WAIT_S
            async with self._ctx.wait("requests under way", on="engines", deadline_s=WAIT_S, go_on=True):
                while self._requests.under_way and self._ctx.now() < until_s:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        return under_way

    async def resume(self) -> None:
        self._requests.release()

    async def update_weights(self, path: str, version: int | None) -> int:
        raise NotHere(OURS)

    async def probe(self) -> None:
        self._probes += 1
        ask = Ask(
            id=f"probe-{self._ctx.incarnation}-{self._probes}",
            prompt=array("I", [0]),
            max_new_tokens=1,
            deadline_s=PROBE_S,
        )
        source = self._requests.stream(ask)
        try:
            async for item in source:
                if not isinstance(item, End):
                    return
        except AskError as problem:
            raise Failed(str(problem)) from problem
        finally:
            await source.aclose()
        raise Failed(f"no engine made a token within {PROBE_S:g} s")

    async def _look(self) -> InstancesAre:
        try:
            return await self._ctx.ask(MANAGER, ListInstances(), deadline_s=ANSWER_S, expect=InstancesAre)
        except AskFailed as problem:
            raise FleetAway(f"{MANAGER}: {problem}") from problem
