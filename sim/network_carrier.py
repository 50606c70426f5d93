"""SimCarrier: data sockets of one process on the simulated network.

Implements `gleaner.transport.carrier.Carrier`. Owns lines and hubs of token streams and the secrets of bulk
tokens; bulk connections are `network_tcp`'s.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.sim.network_path import Station
from gleaner.sim.network_stream import Dialling, DialSettings, SimDealer, SimRouter
from gleaner.sim.network_tcp import SimBulkListener, connect
from gleaner.sim.network_wire import HWM, check_peer, routing_id
from gleaner.transport.carrier import BulkListener, Connection, Hub, Line, LineEvent
from gleaner.transport.keys import Bulk, NodeKeys
from gleaner.transport.refusal import FrameError
from gleaner.transport.wire import Peer, Route, Sent

if TYPE_CHECKING:
    from gleaner.sim.network import Files, SimNet

_EVENTS = {
    Dialling.UP: LineEvent.UP,
    Dialling.LOST: LineEvent.LOST,
    Dialling.REJECTED: LineEvent.REJECTED,
}


class SimCarrier:
    """See the module. Made by `SimNet.carrier`."""

    def __init__(
        self, net: SimNet, station: Station, rng: random.Random, files: Files | None, scale: float
    ) -> None:
        self._net = net
        self._station = station
        self._rng = rng
        self._files = files
        self._scale = scale

    def dial(
        self,
        peer: Peer,
        name: str,
        keys: NodeKeys | None,
        on_frames: Callable[[list[bytes]], None],
        on_event: Callable[[LineEvent], None],
    ) -> Line:
        check_peer(peer, keys)

        def happened(event: Dialling) -> None:
            if event in _EVENTS:
                on_event(_EVENTS[event])

        route = routing_id(self._net, name, keys)
        return SimDealer(self._net, self._station, DialSettings(peer, route, keys, HWM), on_frames, happened)

    def hub(
        self,
        bind: str,
        keys: NodeKeys | None,
        on_frames: Callable[[list[bytes]], None],
        *,
        hwm: int,
        on_refused: Callable[[FrameError], None],
        on_stranger: Callable[[str, str], None],
    ) -> Hub:
        return _SimHub(SimRouter(self._net, self._station, keys, hwm, on_stranger), bind, on_frames)

    def bulk_listener(self, host: str, port: int, keys: NodeKeys | None, bulk: Bulk) -> BulkListener:
        return SimBulkListener(self._net, self._station, f"tcp://{host}:{port}", self._scale)

    async def connect(self, endpoint: str) -> Connection:
        return await connect(self._net, self._station, endpoint, self._scale)

    def content(self, path: Path | str) -> memoryview:
        if self._files is None:
            raise FileNotFoundError(f"{path}: this simulated process was given no files")
        content = memoryview(self._files(path))
        if not content:
            raise ValueError(f"{path} is empty")
        return content

    def secret(self, size_bytes: int) -> bytes:
        return self._rng.randbytes(size_bytes)


class _SimHub:
    """`Hub`: a router whose messages follow their routes."""

    def __init__(self, router: SimRouter, bind: str, on_frames: Callable[[list[bytes]], None]) -> None:
        self._router = router
        self._local = router.bind(bind)
        router.listen(lambda route, frames: on_frames([route, *frames]))

    @property
    def local(self) -> Peer:
        return self._local

    def send(self, route: Route, frames: Sequence[bytes]) -> Sent:
        return self._router.send(route, frames)

    def close(self) -> None:
        self._router.close()
