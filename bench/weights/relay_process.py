"""Host of the relay bench, with one TransferAgent.

Usage: `python -m bench.weights.relay_process ORDERS`.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from gleaner.actors.weights.agent import TransferAgent
from gleaner.actors.weights.image.store import ImageStore
from gleaner.actors.weights.settings import TransferSettings
from gleaner.configs.load import from_tree
from gleaner.configs.schema import Config
from gleaner.nodeagent.host import ProcessLocation, run_process
from gleaner.nodeagent.system import open_system
from gleaner.transport.wire import Peer


class Orders(msgspec.Struct, frozen=True):
    """`name`: of the host; its agent is `<name>/transfer`. `directory`: of its state; its images are below
    `memory`. `head`: address of the first process. `weights`: settings."""

    name: str
    address: str
    directory: str
    memory: str
    head: str
    weights: dict[str, int | float | bool]

    def agent(self) -> TransferAgent:
        """The agent, as on every host."""
        return TransferAgent(
            ImageStore(Path(self.memory) / self.name, keep=2), TransferSettings.of(self.config())
        )

    def config(self) -> Config:
        """Resolved."""
        return from_tree({"weights": self.weights}, "the bench")


async def _main(stop: asyncio.Event) -> int:
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    location = ProcessLocation(
        orders.name,
        "transfer",
        Path(orders.directory) / orders.name,
        listen=f"tcp://{orders.address}:0",
        head=Peer(orders.head),
    )
    async with open_system(location) as system:
        system.spawn(f"{orders.name}/transfer", orders.agent)
        await stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(run_process(_main, "bench"))
