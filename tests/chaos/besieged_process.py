"""A process with every port that Gleaner has, to be attacked.

`python besieged_process.py [KEYS_DIR]` runs until its stdin ends, and prints its endpoints as JSON. Its one
actor counts the messages that reach any actor.
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from gleaner.supervisor import (
    Actor,
    ActorSystem,
    Incarnations,
    Message,
    ProcessIdentity,
    SqliteJournal,
    SystemPorts,
    handles,
)
from gleaner.supervisor.network import Network
from gleaner.transport.bulk import BulkServer
from gleaner.transport.keys import NodeKeys
from gleaner.transport.mesh import ZmqWire
from gleaner.transport.token_stream import StreamReceiver

WITNESS = "witness"


class AreYouWell(Message, frozen=True):
    number: int


class IAmWell(Message, frozen=True):
    number: int
    frames: int
    served_bytes: int
    stream_refused: dict[str, int]
    bulk_refused: dict[str, int]


class Witness(Actor):
    async def on_start(self) -> None:
        self.frames = 0
        self.streams: StreamReceiver = self.ctx.network.token_receiver(
            self.on_frame, lambda stream, _incarnation: 0 if stream == "wanted" else None, window=64
        )
        self.bulk: BulkServer = await self.ctx.network.bulk_server()
        self.ctx.at_end(self.streams.close)
        self.ctx.at_end(self.bulk.close)

    def on_frame(self, _frame: object) -> None:
        self.frames += 1

    @handles(AreYouWell)
    async def well(self, message: AreYouWell) -> IAmWell:
        return IAmWell(
            number=message.number,
            frames=self.frames,
            served_bytes=self.bulk.served_bytes,
            stream_refused=dict(self.streams.refused),
            bulk_refused=dict(self.bulk.refused),
        )


async def main(directory: Path, keys: NodeKeys | None) -> None:
    incarnations = Incarnations(lambda: time.time_ns() // 1_000_000)
    system = ActorSystem(
        ProcessIdentity("besieged", "besieged", incarnations),
        SystemPorts(
            wire=ZmqWire("besieged", incarnations.mint(), "tcp://127.0.0.1:0", keys),
            journals=SqliteJournal(directory / "journal.sqlite"),
            network=Network("127.0.0.1", keys),
        ),
    )
    system.start()
    witness = Witness()
    await system.spawn(WITNESS, lambda: witness).started
    published = directory / "weights"
    published.write_bytes(bytes(1 << 20))
    witness.bulk.publish(1, published)
    print(
        json.dumps(
            {
                "control": system.wire.local.endpoint,
                "stream": witness.streams.local.endpoint,
                "bulk": witness.bulk.endpoint,
            }
        ),
        flush=True,
    )
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await system.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        uvloop.run(main(Path(scratch), NodeKeys.load(sys.argv[1]) if len(sys.argv) > 1 else None))
