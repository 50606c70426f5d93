"""Sending instances: `python -m bench.token_plane.instances ORDERS_JSON`."""

import asyncio
import json
import os
import sys
from pathlib import Path

from bench.token_plane.firehose import Firehose
from gleaner.nodeagent.host import ProcessLocation, run_process
from gleaner.nodeagent.system import open_system
from gleaner.transport.wire import Peer


async def _main(stop: asyncio.Event) -> int:
    orders = json.loads(sys.argv[1])
    if orders["cores"]:
        os.sched_setaffinity(0, orders["cores"])
    location = ProcessLocation("bench", orders["process"], Path(orders["scratch"]), head=Peer(orders["head"]))
    async with open_system(location) as system:
        for name in orders["names"]:
            system.spawn(name, lambda: Firehose(orders["slots"], orders["ring_frames"]))
        await stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(run_process(_main, "bench"))
