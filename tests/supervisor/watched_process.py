"""A process with one actor, to be killed: `python watched_process.py`.

It prints the actor's address as JSON. `--silent-s` and `--beat-s` set its limits.
"""

import asyncio
import contextlib
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from gleaner.supervisor import Actor, ActorSystem, Limits, ProcessIdentity, SqliteJournal, SystemPorts
from gleaner.supervisor.address import Incarnations
from gleaner.supervisor.network import Network
from gleaner.transport.mesh import ZmqWire

LIMITS = Limits(beat_s=0.1, silent_s=1.0)


class Sitting(Actor):
    """Does nothing."""


def system_of(node: str, directory: Path, limits: Limits = LIMITS) -> ActorSystem:
    """An actor system on a real wire, with short times."""
    incarnations = Incarnations(lambda: time.time_ns() // 1_000_000)
    return ActorSystem(
        ProcessIdentity(node, "test", incarnations),
        SystemPorts(
            wire=ZmqWire(node, incarnations.mint()),
            journals=SqliteJournal(directory / f"{node}.sqlite"),
            network=Network("127.0.0.1", None),
        ),
        limits=limits,
    )


async def main() -> None:
    with TemporaryDirectory() as directory:
        system = system_of("watched", Path(directory))
        system.start()
        print(msgspec.json.encode(system.spawn("sitting", Sitting).address).decode(), flush=True)
        await asyncio.sleep(600.0)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
