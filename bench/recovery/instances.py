"""Process of modelled instances: `python -m bench.recovery.instances ORDERS_JSON`."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

from bench.recovery.observer import Observer
from bench.recovery.worker import ModelledWorker, NoWeights
from gleaner.configs.load import load
from gleaner.nodeagent.host import Bounds, ProcessLocation, open_log, run_process
from gleaner.nodeagent.system import open_system
from gleaner.transport.wire import Peer


def _made(workers: list[ModelledWorker], number: int) -> Callable[[], ModelledWorker]:
    return lambda: workers[number]


async def _main(stop: asyncio.Event) -> int:
    orders = json.loads(sys.argv[1])
    config = load(orders["config"])
    process = orders["process"]
    location = ProcessLocation(
        process, "engines", Path(orders["scratch"]) / process, head=Peer(orders["head"])
    )
    open_log(location)
    async with open_system(location, Bounds.of(config)) as system:
        system.spawn(f"{process}/transfer", NoWeights)
        names = [f"{process}-{number}/engine" for number in range(orders["count"])]
        workers = [ModelledWorker(config, process, orders["step_s"]) for _ in names]
        for number, name in enumerate(names):
            system.spawn(name, _made(workers, number))
        system.spawn(f"{process}/witness", lambda: Observer(workers))
        await stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(run_process(_main, "bench"))
