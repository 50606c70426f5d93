"""Gateway clients: programs that send HTTP calls to the gateway of a simulated cluster.

They read slowly, leave, send what is wrong, and send a named call again when its connection broke. Owns their
pace and their patience. All draws depend on the seed alone. They record calls and answers as facts;
`gleaner.chaos.invariants.gateway_answers` and `gateway_requests` judge them.
"""

import asyncio
import random
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from gleaner.chaos.gateway_calls import PATHS, Reading, body_of, drawn
from gleaner.chaos.invariants.facts import Fact
from gleaner.chaos.invariants.gateway_facts import CallOver, CallSent, GatewayCall, Outcome
from gleaner.configs.schema import Config
from gleaner.sim.cluster import SimCluster
from gleaner.sim.gateway_entry import API_KEY
from gleaner.sim.hosts import SimProcess
from gleaner.sim.http_client import HttpCall, post
from gleaner.sim.network_path import Station

BEGIN_S = 8.0  # some calls come before there are weights, or a gateway
GAP_S = 0.8  # mean pause of one client after an answer
AGAIN_S = 1.0  # mean pause before a broken call is sent again
MOST_ATTEMPTS = 8
PATIENCE_S = 60.0  # beyond the deadline of a call: a client that still waits then gives up


class GatewayClient:
    """One program; `run` it. It makes one call at a time.

    Args:
        name: unique among the clients of the run. rng: for this one alone.
        see: called with each call and its end.
    """

    def __init__(
        self, name: str, cluster: SimCluster, rng: random.Random, see: Callable[[Fact], None]
    ) -> None:
        self._name, self._cluster, self._rng, self._see = name, cluster, rng, see
        self._config: Config = cluster.setting.config

    async def run(self, process: SimProcess) -> int:
        """Call, for ever."""
        rng, number = self._rng, 0
        station = self._cluster.net.station(process.loop, process.host.name, process.name)
        await asyncio.sleep(rng.uniform(0.0, BEGIN_S))
        while True:
            call = drawn(self._name, number, rng, self._config)
            number += 1
            for attempt in range(MOST_ATTEMPTS):
                over = await self._call(station, replace(call, attempt=attempt))
                if over.outcome != "broken" or not call.rid:
                    break
                await asyncio.sleep(rng.expovariate(1 / AGAIN_S))
            await asyncio.sleep(rng.expovariate(1 / GAP_S))

    async def _call(self, station: Station, call: GatewayCall) -> CallOver:
        sent_s = self._cluster.loop.now_s
        self._see(CallSent(sent_s, call))
        reading, status = Reading(call), 0
        outcome: Outcome = "left"
        error = ""
        open_: list[HttpCall] = []
        try:
            async with asyncio.timeout(call.leave_s or call.deadline_s + PATIENCE_S):
                body = body_of(call, self._config)
                headers = self._headers(call)
                path = PATHS[call.wire]
                http = await post(self._cluster.net, station, self._cluster.gateway, path, headers, body)
                open_.append(http)
                status = await http.head()
                await self._read(http, reading, call, whole=status != 200 or not call.stream)
                outcome = "refused" if status != 200 else "error" if reading.error else "whole"
        except TimeoutError:
            pass
        except OSError as problem:
            outcome, error = "broken", str(problem)
        finally:
            for http in open_:
                http.close()
        over = CallOver(
            self._cluster.loop.now_s,
            call,
            sent_s,
            outcome,
            status,
            reading.error or error,
            tuple(reading.choices),
            reading.usage,
            reading.extra,
        )
        self._see(over)
        return over

    async def _read(self, http: HttpCall, reading: Reading, call: GatewayCall, *, whole: bool) -> None:
        held = b""
        async for piece in http.pieces():
            if whole:
                held += piece
            else:
                reading.feed(piece)
            if call.pause_s:
                await asyncio.sleep(call.pause_s)
        if whole:
            reading.take(msgspec.json.decode(held))
        elif not reading.done:
            reading.extra = reading.extra or "the stream ended without its end"

    def _headers(self, call: GatewayCall) -> dict[str, str]:
        key = "other" if call.wrong == "key" else API_KEY
        headers = {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/json",
            "X-Request-Deadline-S": f"{call.deadline_s:g}",
            "Connection": "close",
        }
        return headers | ({"X-Request-ID": call.rid} if call.rid else {})
