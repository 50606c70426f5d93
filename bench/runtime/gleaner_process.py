"""Gleaner's processes: `python -m bench.runtime.gleaner_process ORDERS_JSON`."""

import asyncio
import json
import sys
from pathlib import Path

from bench.runtime.gleaner_cast import Counter, Echo
from bench.runtime.gleaner_storm import StormActor, StormScribe
from bench.runtime.task import Storm
from gleaner.nodeagent.host import ProcessLocation, run_process
from gleaner.nodeagent.system import open_system
from gleaner.supervisor import ActorSystem, Intensity, Supervisor, child, one_for_one
from gleaner.transport.wire import Peer

MANY_RESTARTS = Intensity(restarts=100, within_s=0.001)  # each crash of the measurement counts as a first one


async def _perform(
    system: ActorSystem, orders: dict[str, object], scratch: Path, stop: asyncio.Event
) -> None:
    cast = orders["cast"]
    number = orders.get("count", 0)
    assert isinstance(number, int)
    if cast == "pair":
        system.spawn("echo", Echo)
        system.spawn("counter", Counter)
    elif cast == "crowd":
        for one in range(number):
            system.spawn(f"echo-{one}", Echo)
    elif cast == "storm":
        storm = Storm()
        for one in range(number):
            system.spawn(f"{system.process}-{one}", lambda: StormActor(storm))
        system.spawn(f"scribe-{system.process}", lambda: StormScribe(storm, scratch))
    elif cast == "frail":
        tree = Supervisor(
            system,
            one_for_one(child("frail", Echo), name="bench", intensity=MANY_RESTARTS),
            on_failure=lambda problem: stop.set(),
        )
        await tree.start()
    await stop.wait()


async def _main(stop: asyncio.Event) -> int:
    orders = json.loads(sys.argv[1])
    scratch = Path(orders["scratch"])
    location = ProcessLocation(
        "bench", orders["process"], scratch / orders["process"], head=Peer(orders["head"])
    )
    async with open_system(location) as system:
        await _perform(system, orders, scratch, stop)
    return 0


if __name__ == "__main__":
    sys.exit(run_process(_main, "bench"))
