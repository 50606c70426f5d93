"""Hosts with TransferAgents for tests: publisher "a", and receivers by letters."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.weights import Fetch, Fetched, Publish, Published
from gleaner.actors.weights.agent import TransferAgent
from gleaner.actors.weights.delta.threads import on_threads
from gleaner.actors.weights.image.store import ImageStore
from gleaner.actors.weights.settings import TransferSettings
from gleaner.configs.load import from_tree
from gleaner.supervisor.testing import TestSystem
from gleaner.transport.bulk_server import BulkServer
from gleaner.transport.carrier import Connection

CHUNK = 64 * 1024
CHUNKS = 24
SIZE = CHUNKS * CHUNK
TENSORS = (TensorSpec("w", "bfloat16", (SIZE // 2,), 0, SIZE),)
SLOW = {"link_bytes_s": 1e5}  # so that the image is worth a chain, where a host serves one other


@dataclass
class Hosts:
    """The publisher "a", and receivers."""

    systems: dict[str, TestSystem]
    directory: Path
    settings: dict[str, object]
    agents: dict[str, TransferAgent] = field(default_factory=dict)
    far: str = ""  # hosts in another datacenter

    def start(self, name: str) -> None:
        weights = {"chunk_bytes": CHUNK, "require_finite": False, **self.settings}  # random bytes
        config = from_tree({"weights": weights}, "test")
        store = self.directory / name

        def made() -> TransferAgent:
            datacenter = "far" if name in self.far else "near"
            each = on_threads(config.weights.delta_threads)
            self.agents[name] = TransferAgent(
                ImageStore(store), TransferSettings.of(config), datacenter, each=each
            )
            return self.agents[name]

        self.systems[name].spawn(f"{name}/transfer", made)

    async def publish(self, version: int, data: bytes, host: str = "a") -> bytes:
        store = ImageStore(self.directory / host)
        with await asyncio.to_thread(store.create, version, len(data), patience_s=60.0) as draft:
            draft.view[:] = data
            draft.seal()
        message = Publish(version=version, tensors=TENSORS, model_config=b"{}")
        return (await self.systems[host].ask(f"{host}/transfer", message, Published)).root

    async def fetch(self, name: str, version: int, root: bytes, source: str = "a") -> Fetched:
        message = Fetch(version=version, root=root, sources=(f"{source}/transfer",))
        return await self.systems[name].ask(f"{name}/transfer", message, Fetched, deadline_s=60)

    def image(self, name: str, version: int) -> bytes:
        return bytes(ImageStore(self.directory / name).content(version))

    def served(self, name: str) -> int:
        """Bytes that its agent has sent to others in this life."""
        return int(self.agents[name].summary()["served_bytes"])


@asynccontextmanager
async def hosts(directory: Path, names: str, *, far: str = "", **settings: object) -> AsyncIterator[Hosts]:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(TestSystem(directory, node="a"))
        systems = {"a": first}
        for name in names[1:]:
            systems[name] = await stack.enter_async_context(TestSystem(directory, node=name, join=first))
        found = Hosts(systems, directory, settings, far=far)
        for name in names:
            found.start(name)
        yield found


def changed(data: bytes, *, every: int) -> bytes:
    """The data with one element of each `every` changed."""
    new = bytearray(data)
    for at in range(0, len(new), 2 * every):
        new[at] ^= 1
    return bytes(new)


def slow_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay every chunk, so that pulls overlap."""
    look_up = BulkServer._look_up

    async def slowly(server: BulkServer, connection: Connection, *args: object) -> object:
        await connection.on_loop(asyncio.sleep(0.02))
        return await look_up(server, connection, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(BulkServer, "_look_up", slowly)
