"""Ends of peer projects' transfer engines, run with .bench/transfer's Python.

`make bench-peers` makes it. Owns the same ends as `pull_ends` for ours, with the same command line:
`serve|pull mooncake|nixl FILE CONNECTIONS [WHERE]`; the engines ignore CONNECTIONS. Imports nothing of the
project. Both engines read remote memory by its address, in requests of 4 MiB.
"""

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy
from numpy.typing import NDArray

Memory = NDArray[numpy.uint8]

CHUNK_BYTES = 4 << 20
REQUESTS = 16  # given to Mooncake at a time: larger batches gain nothing


def serve_mooncake(memory: Memory) -> None:
    """Registers the memory and waits for the end of its input."""
    engine, port = _mooncake(memory)
    say({"host": f"127.0.0.1:{port}", "address": memory.ctypes.data})
    sys.stdin.read()
    del engine


def pull_mooncake(memory: Memory, where: dict[str, Any]) -> None:
    """Batches of reads, one after the other."""
    engine, _ = _mooncake(memory)
    ours, theirs = memory.ctypes.data, where["address"]

    def once() -> None:
        for at in range(0, len(memory), REQUESTS * CHUNK_BYTES):
            places = range(at, min(at + REQUESTS * CHUNK_BYTES, len(memory)), CHUNK_BYTES)
            failed = engine.batch_transfer_sync_read(
                where["host"],
                [ours + place for place in places],
                [theirs + place for place in places],
                [CHUNK_BYTES] * len(places),
            )
            if failed:
                raise SystemExit(f"Mooncake's read failed: {failed}")

    answer(once)


def _mooncake(memory: Memory) -> tuple[Any, int]:
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    if engine.initialize("127.0.0.1:0", "P2PHANDSHAKE", "tcp", ""):
        raise SystemExit("Mooncake's engine did not start")
    if engine.register_memory(memory.ctypes.data, len(memory)):
        raise SystemExit("Mooncake did not take the memory")
    return engine, engine.get_rpc_port()


def serve_nixl(memory: Memory) -> None:
    """Source of NIXL, as Mooncake's."""
    agent = _nixl("source", memory)
    say({"metadata": agent.get_agent_metadata().hex(), "address": memory.ctypes.data})
    sys.stdin.read()


def pull_nixl(memory: Memory, where: dict[str, Any]) -> None:
    """One transfer of all requests, posted again each time."""
    agent = _nixl("receiver", memory)
    source = agent.add_remote_agent(bytes.fromhex(where["metadata"]))
    places = range(0, len(memory), CHUNK_BYTES)

    def descriptors(base: int) -> Any:
        return agent.get_xfer_descs([(base + place, CHUNK_BYTES, 0) for place in places], "DRAM")

    handle = agent.initialize_xfer(
        "READ", descriptors(memory.ctypes.data), descriptors(where["address"]), source
    )

    def once() -> None:
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        if state != "DONE":
            raise SystemExit(f"NIXL's read ended as {state}")

    answer(once)


def _nixl(name: str, memory: Memory) -> Any:
    os.environ.setdefault("UCX_TLS", "tcp")
    from nixl_cu12._api import nixl_agent, nixl_agent_config

    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    agent.register_memory([(memory.ctypes.data, len(memory), 0, "")], "DRAM")
    return agent


def say(what: object) -> None:
    """Print a line to the parent process."""
    os.write(_ANSWERS, (json.dumps(what) + "\n").encode())


def answer(once: Callable[[], None]) -> None:
    """One transfer for each line that is read."""
    say("ready")
    for _ in sys.stdin:
        began = time.perf_counter()
        once()
        say(time.perf_counter() - began)


_ANSWERS = os.dup(1)  # the engines print to the other one
os.dup2(2, 1)

if __name__ == "__main__":
    role, way, file, _connections = sys.argv[1:5]
    with open(file, "r+b") as opened:
        memory = numpy.frombuffer(mmap.mmap(opened.fileno(), 0), dtype=numpy.uint8)
    serve, pull = {"mooncake": (serve_mooncake, pull_mooncake), "nixl": (serve_nixl, pull_nixl)}[way]
    if role == "serve":
        serve(memory)
    else:
        pull(memory, json.loads(sys.argv[5]))
