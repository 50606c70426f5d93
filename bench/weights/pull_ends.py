"""Ends of a transfer between files in shared memory: ours and blocking TCP.

`python -m bench.weights.pull_ends serve|pull WAY FILE CONNECTIONS [WHERE]`, a process for each end. A source
prints its address as a line of JSON; a receiver prints one line when it is ready, then pulls the whole file
for each line that it reads, and prints the seconds. The peers' ends (`pull_peer_ends.py`) use the same
protocol.
"""

import asyncio
import json
import mmap
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import uvloop
import xxhash

from gleaner.transport.bulk import BulkServer, BulkSource, Chunk, pull

CHUNK_BYTES = 4 << 20
VERSION = 1
STAY_S = 3600.0


def serve_ours(file: Path) -> None:
    """Production's source."""

    async def main() -> None:
        server = BulkServer()
        await server.start()
        server.publish(VERSION, file)
        say({"endpoint": server.endpoint, "token": server.issue_token(VERSION).hex(), "of": str(file)})
        await asyncio.sleep(STAY_S)

    uvloop.run(main())


def pull_ours(into: memoryview, connections: int, where: dict[str, str]) -> None:
    """Production's pull: every chunk checked against its digest."""
    content = mapped(Path(where["of"]), mmap.ACCESS_READ)
    chunks = [
        Chunk(at, CHUNK_BYTES, xxhash.xxh3_128(content[at : at + CHUNK_BYTES]).digest())
        for at in range(0, len(into), CHUNK_BYTES)
    ]
    source = BulkSource(where["endpoint"], bytes.fromhex(where["token"]))

    async def once() -> None:
        await pull(source, VERSION, chunks, into, sockets=connections, deadline_s=60)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answer(lambda: runner.run(once()))


def serve_blocking(file: Path) -> None:
    """A thread for each connection, which sends its share of the chunks for each byte that it gets."""
    content = mapped(file, mmap.ACCESS_READ)

    def give(connection: socket.socket) -> None:
        number, of = connection.recv(2)
        while connection.recv(1):
            for at in range(number * CHUNK_BYTES, len(content), of * CHUNK_BYTES):
                connection.sendall(content[at : at + CHUNK_BYTES])

    with socket.create_server(("127.0.0.1", 0)) as listening:
        say(listening.getsockname()[1])
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=give, args=(connection,), daemon=True).start()


def pull_blocking(into: memoryview, connections: int, where: int) -> None:
    """The limit of Python over TCP: nothing is checked."""
    sockets = [socket.create_connection(("127.0.0.1", where)) for _ in range(connections)]
    for number, one in enumerate(sockets):
        one.sendall(bytes((number, connections)))

    def take(number: int) -> None:
        sockets[number].sendall(b"!")
        for at in range(number * CHUNK_BYTES, len(into), connections * CHUNK_BYTES):
            filled = 0
            while filled < CHUNK_BYTES:
                filled += sockets[number].recv_into(into[at + filled : at + CHUNK_BYTES])

    def once() -> None:
        threads = [threading.Thread(target=take, args=(number,)) for number in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    answer(once)


def mapped(file: Path, access: int) -> memoryview:
    """The file's pages."""
    with file.open("rb" if access == mmap.ACCESS_READ else "r+b") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0, access=access))


def say(what: object) -> None:
    """Print a line to the parent process."""
    print(json.dumps(what), flush=True)


def answer(once: Callable[[], None]) -> None:
    """One transfer for each line that is read."""
    say("ready")
    for _ in sys.stdin:
        began = time.perf_counter()
        once()
        say(time.perf_counter() - began)


def main() -> None:
    """The command line."""
    role, way, file, connections = sys.argv[1:5]
    ours = way == "ours"
    if role == "serve":
        (serve_ours if ours else serve_blocking)(Path(file))
        return
    into, where = mapped(Path(file), mmap.ACCESS_WRITE), json.loads(sys.argv[5])
    if ours:
        pull_ours(into, int(connections), where)
    else:
        pull_blocking(into, int(connections), where)


if __name__ == "__main__":
    main()
