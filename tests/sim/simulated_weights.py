"""Simulated hosts with TransferAgents: the publisher "a" and its receivers.

A fault can strike a pull when a given number of its chunks has arrived.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.weights import Fetch, Fetched, Publish, Published
from gleaner.actors.weights.agent import TransferAgent
from gleaner.actors.weights.settings import TransferSettings
from gleaner.actors.weights.transfer.payload import Payload
from gleaner.configs.load import from_tree
from gleaner.sim.disk import SimDisk
from gleaner.sim.loop import SimLoop
from gleaner.sim.machine import SimMachine
from gleaner.sim.meter import Meter
from gleaner.sim.models.image_memory import SimImages
from gleaner.sim.network import SimNet
from gleaner.sim.process_loop import ProcessLoop
from gleaner.supervisor import ActorSystem, AskFailed, Incarnations, ProcessIdentity, Registry, SystemPorts
from gleaner.supervisor.machine import Child, OnExit
from gleaner.supervisor.network import Network
from gleaner.supervisor.process import ProcessSpec
from gleaner.transport.bulk import Chunk
from gleaner.transport.wire import Peer

R = TypeVar("R", Fetched, Published)
CHUNK, CHUNKS = 64 << 10, 100
SIZE = CHUNK * CHUNKS
TENSORS = (TensorSpec("w", "bfloat16", (SIZE // 2,), 0, SIZE),)
CARD_BYTES_S = SIZE / 1.0  # an image takes a second
PORT = 7700


@dataclass
class Life:
    process: ProcessLoop
    system: ActorSystem | None = None
    agent: TransferAgent | None = None


@dataclass
class SimulatedWeights:
    """See the module.

    names: a letter for each host. struck: the action to run once when a receiver has this many chunks of a
    version, by receiver, version and count.
    """

    names: str
    settings: dict[str, object] = field(default_factory=dict)
    memory: dict[str, dict[Path, bytes]] = field(default_factory=dict)
    lives: dict[str, Life] = field(default_factory=dict)
    struck: dict[tuple[str, int, int], Callable[[], object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.loop = SimLoop()
        self.net = SimNet(self.loop, random.Random(1), self.loop.trace)
        self.addresses = {
            name: self.net.add_host(name, egress_bytes_s=CARD_BYTES_S, ingress_bytes_s=CARD_BYTES_S)
            for name in ("head", *self.names)
        }
        self.disks = {name: SimDisk(self.loop, random.Random(name), name) for name in self.addresses}
        self.client = self.start("head")
        for name in self.names:
            self.memory[name] = {}
            self.start(name)
        self.loop.run(1.0)

    def start(self, name: str) -> Life:
        """A process on that host, with the contents of the host's memory."""
        life = self.lives[name] = Life(self.loop.spawn(f"{name}/main", name))
        life.process.create_task(self._main(life, name))
        return life

    def kill(self, name: str) -> None:
        """SIGKILL; the process is replaced 0.2 s later."""
        self.lives[name].process.kill()
        self.loop.call_later(0.2, self.start, name)

    async def _main(self, life: Life, name: str) -> None:
        process = life.process
        store = self.disks[name].journal("main.sqlite", process, commit_s=0.005)
        incarnations = Incarnations(lambda: self.loop.wall_ms(name))
        incarnations.at_least(await store.newest_incarnation())
        head = Peer(f"tcp://{self.addresses['head']}:{PORT}")
        life.system = ActorSystem(
            ProcessIdentity(name, "main", incarnations),
            SystemPorts(
                wire=self.net.wire(process, name, f"{name}/main", head.endpoint if name == "head" else None),
                journals=store,
                network=Network(
                    self.addresses[name], None, carrier=self.net.carrier(process, name), bulk="clear"
                ),
                machine=SimMachine(process, no_child, Meter()),
            ),
            registry=None if name == "head" else head,
            seed=1,
        )
        life.system.start()
        if name == "head":
            limits = life.system.limits
            life.system.spawn("registry", lambda: Registry(lambda: limits.lease_s))
            return
        weights = {"chunk_bytes": CHUNK, "link_bytes_s": CARD_BYTES_S, "delta": False}
        weights |= {"require_finite": False, **self.settings}  # random bytes
        config = from_tree({"weights": weights}, "test")
        agent = life.agent = TransferAgent(self.images(name), TransferSettings.of(config))
        life.system.spawn(f"{name}/transfer", lambda: agent)

    def images(self, name: str) -> SimImages:
        return SimImages(self.memory[name], Path("/images"))

    def image(self, name: str, version: int) -> bytes:
        return bytes(self.images(name).content(version))

    async def publish(self, version: int, data: bytes) -> bytes:
        with self.images("a").create(version, len(data)) as draft:
            draft.view[:] = data
            draft.seal()
        message = Publish(version=version, tensors=TENSORS, model_config=b"{}")
        return (await self.ask("a", message, Published)).root

    def agent(self, name: str) -> TransferAgent:
        agent = self.lives[name].agent
        assert agent is not None
        return agent

    async def fetch(self, name: str, version: int, root: bytes, source: str = "a") -> Fetched:
        """Fetch as an instance does: repeat the request where the asked agent died.

        Raises AskFailed where another version is requested meanwhile.
        """
        message = Fetch(version=version, root=root, sources=(f"{source}/transfer",))
        for _ in range(20):
            try:
                return await self.ask(name, message, Fetched)
            except AskFailed as problem:
                if "is wanted here instead" in str(problem):
                    raise
                await asyncio.sleep(0.1)
        raise AssertionError(f"{name} never had version {version}")

    async def ask(self, name: str, message: Fetch | Publish, expect: type[R]) -> R:
        assert self.client.system is not None
        return await self.client.system.ask(f"{name}/transfer", message, deadline_s=60.0, expect=expect)

    def served_bytes(self, name: str) -> int:
        agent = self.lives[name].agent
        return int(agent.summary()["served_bytes"]) if agent is not None else 0

    def complete(self, work: Coroutine[object, object, None]) -> None:
        """Run on the head in virtual time, then end the simulation."""
        try:
            self.loop.complete(self.client.process, work, 3600.0)
        finally:
            self.loop.close()

    def strike_by(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From here on, check `struck` whenever a chunk arrives."""
        landed = Payload.landed

        def come(payload: Payload, chunk: Chunk) -> None:
            landed(payload, chunk)
            running = asyncio.get_running_loop()
            for name, life in self.lives.items():
                if life.process is running:
                    strike = self.struck.pop((name, payload.key, len(payload.done)), None)
                    if strike is not None:
                        self.loop.call_soon(strike)

        monkeypatch.setattr(Payload, "landed", come)


def no_child(spec: ProcessSpec, on_exit: OnExit) -> Child:
    raise OSError(f"nobody starts {spec.name} here")
