"""Openers of wires for the suites that every carrier must pass.

They open loopback wires, ZeroMQ wires without and with keys, and a seeded wrapper that drops, doubles,
delays, breaks and mends.
"""

import asyncio
import contextlib
import random
import socket
import time
from collections import Counter
from collections.abc import Sequence

from gleaner.transport.keys import NodeKeys
from gleaner.transport.loopback import LoopbackNetwork
from gleaner.transport.mesh import ZmqWire
from gleaner.transport.sockets import CannotListen
from gleaner.transport.wire import LinkTimes, OnFrames, OnLink, Peer, Route, Sent, Wire

PATIENT_S = 600.0
"""The grace of a link: a slow peer is not given up unless a test requests it (`gives_up_after`)."""
SOON_S = 0.5
"""The grace in a test that gives a peer up and waits for it."""


class Proxy:
    """Forwards TCP to a port of this host until `cut`, like a middlebox or a partition.

    After `cut` it drops arriving bytes, a moment later breaks every connection, and accepts and breaks new
    ones.
    """

    def __init__(self, port: int) -> None:
        self.port = 0
        self.open = True
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        self.open = False
        asyncio.get_running_loop().call_later(0.01, self._break)

    def _break(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        self.open = True

    def stop(self) -> None:
        self.open = False
        self._break()
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.open:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        self._writers -= {writer, back}

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                if self.open:
                    sink.write(data)
                    await sink.drain()
        sink.transport.abort()


class Loopback:
    """Opens wires of one process."""

    def __init__(self) -> None:
        self.network = LoopbackNetwork(grace_s=PATIENT_S, connect_deadline_s=PATIENT_S)
        self.wires: list[Wire] = []

    def open(self, name: str) -> Wire:
        self.wires.append(self.network.wire(name))
        return self.wires[-1]

    def address(self, name: str) -> Peer:
        """The address at which `name` will listen, known before it does."""
        return Peer(f"loop://{name}")

    def gives_up_after(self, seconds: float) -> None:
        """Sets how long links opened from now on wait for an absent peer."""
        self.network.grace_s = self.network.connect_deadline_s = seconds

    async def cuttable(self, name: str) -> Peer:
        """An address of `name` whose connections are broken by `cut` until `mend`."""
        return self.address(name)

    def cut(self, name: str) -> None:
        self.network.cut(name)

    def mend(self, name: str) -> None:
        self.network.mend(name)

    async def close(self) -> None:
        for wire in self.wires:
            await wire.close()


class Plain:
    """Opens wires over ZeroMQ without keys; each name keeps its port."""

    keys: NodeKeys | None = None

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.proxies: dict[str, Proxy] = {}
        self.wires: list[Wire] = []
        self.patience_s = PATIENT_S

    def open(self, name: str) -> Wire:
        endpoint = self.address(name).endpoint
        for _ in range(200):  # the socket that was closed last releases its port a moment later
            try:
                wire = ZmqWire(
                    name,
                    1,
                    endpoint,
                    self.keys,
                    times=LinkTimes(self.patience_s, self.patience_s),
                )
            except CannotListen:
                time.sleep(0.005)
            else:
                self.wires.append(wire)
                return wire
        raise AssertionError(f"{endpoint} was never free")

    def gives_up_after(self, seconds: float) -> None:
        """Sets how long links opened from now on wait for an absent peer."""
        self.patience_s = seconds

    def address(self, name: str) -> Peer:
        if name not in self.ports:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self.ports[name] = probe.getsockname()[1]
        return Peer(f"tcp://127.0.0.1:{self.ports[name]}", self.keys.public if self.keys else "")

    async def cuttable(self, name: str) -> Peer:
        """An address of `name` whose connections are broken by `cut` until `mend`."""
        direct = self.address(name)
        proxy = self.proxies[name] = Proxy(self.ports[name])
        await proxy.start()
        return Peer(f"tcp://127.0.0.1:{proxy.port}", direct.public_key)

    def cut(self, name: str) -> None:
        self.proxies[name].cut()

    def mend(self, name: str) -> None:
        self.proxies[name].mend()

    async def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.stop()
        await asyncio.sleep(0.01)
        for wire in self.wires:
            await wire.close()


class Keyed(Plain):
    """The same with CURVE keys."""

    keys = NodeKeys.generate()


class FlakyWire:
    """A wire that loses, doubles and delays its frames, by a seed.

    It has the shape of `Wire` without its promises of order and of at most once.
    """

    def __init__(self, wire: Wire, rng: random.Random) -> None:
        self.wire = wire
        self.rng = rng
        self.calm = False  # then the frames are not disturbed
        self.done: Counter[str] = Counter()
        self.known: set[Peer | Route] = set()

    @property
    def local(self) -> Peer:
        return self.wire.local

    @property
    def refused(self) -> Counter[str]:
        return self.wire.refused

    def send(self, to: Peer | Route, frames: Sequence[bytes]) -> Sent:
        if to in self.known and not self.calm and self.rng.random() < 0.05:
            self.done["refused"] += 1
            return Sent.NO_CREDIT
        self.known.add(to)  # the first send dials, and always gets through
        return self.wire.send(to, frames)

    def listen(self, on_frames: OnFrames, on_link: OnLink) -> None:
        def flaky(route: Route, frames: list[bytes]) -> None:
            fate = "kept" if self.calm else self.rng.choices(FATES, WEIGHTS)[0]
            self.done[fate] += 1
            if fate == "late":
                asyncio.get_running_loop().call_later(self.rng.uniform(0.001, 0.03), on_frames, route, frames)
            elif fate != "lost":
                on_frames(route, frames)
                if fate == "twice":
                    on_frames(route, frames)

        self.wire.listen(flaky, on_link)

    def peer_of(self, route: Route) -> Peer | None:
        return self.wire.peer_of(route)

    def refuse(self, route: Route, reason: str, detail: str) -> None:
        self.wire.refuse(route, reason, detail)

    def forget(self, peer: Peer) -> None:
        self.known.discard(peer)
        self.wire.forget(peer)

    async def close(self) -> None:
        await self.wire.close()


FATES = ("kept", "lost", "twice", "late")
WEIGHTS = (65, 10, 10, 15)


class Flaky(Loopback):
    """Loopback wires that drop, double and delay, under a seed; `storm` also breaks and mends connections."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self.rng = random.Random(seed)

    def open(self, name: str) -> FlakyWire:
        return FlakyWire(super().open(name), self.rng)

    async def storm(self, names: Sequence[str], until: asyncio.Event) -> None:
        """Cut and mend, each for less than the grace, until `until` is set."""
        while not until.is_set():
            await asyncio.sleep(self.rng.uniform(0.01, 0.06))
            name = self.rng.choice(names)
            self.network.cut(name)
            await asyncio.sleep(self.rng.uniform(0.0, 0.05))
            self.network.mend(name)
