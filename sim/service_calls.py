"""Calls of a shared reward service over the simulated network.

`SimConnections` is the client's end in a job's processes, with production's deadlines, tries and reading of
answers above it. `ServiceCalls` gives each call and its end to observers of a run.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from gleaner.actors.reward.verifiers.http_calls import HttpAnswer, Unavailable, accepted
from gleaner.sim.hosts import SimProcess
from gleaner.sim.http_client import HttpCall, post
from gleaner.sim.network import SimNet


@dataclass(frozen=True, slots=True)
class ServiceCall:
    """One call. number: unique in the run. process: that makes it. body: JSON, as it is sent. most: calls
    that may be under way at a time in this process."""

    number: int
    process: SimProcess
    body: bytes
    most: int


class ServiceCalls:
    """Callbacks of observers. began: as a call is made. over: when it has ended, with whether its connection
    was left before the answer was whole."""

    def __init__(self) -> None:
        self.began: Callable[[ServiceCall], None] = lambda call: None
        self.over: Callable[[ServiceCall, bool], None] = lambda call, left: None
        self._numbers = itertools.count(1)

    def new(self, process: SimProcess, body: bytes, most: int) -> ServiceCall:
        """A call that begins now."""
        call = ServiceCall(next(self._numbers), process, body, most)
        self.began(call)
        return call


class SimConnections:
    """Implements `shared_service.Connections`: a connection a call. A URL names a simulated host.

    Args:
        net: that carries them. process: whose they are. calls: for observers.
    """

    def __init__(self, net: SimNet, process: SimProcess, calls: ServiceCalls) -> None:
        self._net, self._process, self._calls = net, process, calls
        self._station = net.station(process.loop, process.host.name, process.name)

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], most: int) -> bytes:
        """See `Connections`."""
        parts = urlsplit(url)
        host = self._net.map.hosts.get(parts.hostname or "")
        if host is None:
            raise Unavailable(f"there is no host {parts.hostname}")
        call, left = self._calls.new(self._process, body, most), True
        opened: list[HttpCall] = []
        try:
            endpoint = f"tcp://{host.address}:{parts.port or 80}"
            sent = {**headers, "Content-Type": "application/json", "Connection": "close"}
            http = await post(self._net, self._station, endpoint, parts.path, sent, body)
            opened.append(http)
            status = await http.head()
            text = b"".join([piece async for piece in http.pieces()])
            left = False
        except (OSError, asyncio.IncompleteReadError, ValueError, IndexError) as problem:
            raise Unavailable(f"{type(problem).__name__}: {problem}") from None
        finally:
            for http in opened:
                http.close()
            self._calls.over(call, left)
        wall_s = self._process.host.loop.wall_ms(self._process.host.name) / 1000
        return accepted(HttpAnswer(status, http.headers.get("retry-after", ""), text), wall_s)

    async def close(self) -> None:
        """See `Connections`: each call has closed its own."""
