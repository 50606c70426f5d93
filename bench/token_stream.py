"""Tokens per second from one sender process to one receiver process.

Ours: StreamSender to StreamReceiver, every frame sequenced, credited and acknowledged. Peers, measured in the
same run with the same bytes: a bare DEALER to ROUTER loop with blocking sockets (no sequence, no
acknowledgement: the limit), and the same through zmq.asyncio.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
import uvloop
import zmq
import zmq.asyncio

from bench.table import Row, run
from gleaner.transport import token_frame
from gleaner.transport.token_frame import PackedFrame, TokenFrame
from gleaner.transport.token_stream import StreamReceiver, StreamSender
from gleaner.transport.wire import Peer

ROWS = (1, 16, 64)  # requests decoded together
SECONDS = 0.8  # of each measurement
REPEATS = 2  # the best is reported: other work on the host only slows it
ACK_EVERY = 32  # frames; a manager acknowledges once a commit


def _columns(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return (
        np.arange(rows, dtype="<u4"),
        np.arange(rows, dtype="<u4"),
        np.full(rows, -0.5, "<f4"),
        np.zeros(rows, "u1"),
    )


def _send_ours(endpoint: str, rows: int) -> None:
    async def main() -> None:
        sender = StreamSender("bench", 1)
        sender.connect(Peer(endpoint))
        columns = _columns(rows)
        while True:
            await sender.writable()
            for _ in range(64):
                if not sender.send(*columns):
                    break
            await asyncio.sleep(0)

    uvloop.run(main())


def _receive_ours(ready: Connection, rows: int) -> float:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        got, tokens, flowing = 0, 0, asyncio.Event()

        def on_frame(frame: PackedFrame) -> None:
            nonlocal got, tokens
            got += 1
            tokens += len(frame)
            flowing.set()
            if got % ACK_EVERY == 0:
                receiver.acknowledge("bench", 1, frame.seq)

        receiver = StreamReceiver("tcp://127.0.0.1:0", on_frame, lambda stream, incarnation: 0)
        ready.send(receiver.local.endpoint)
        await flowing.wait()
        before, began = tokens, loop.time()
        await asyncio.sleep(SECONDS)
        rate = (tokens - before) / (loop.time() - began)
        await receiver.close()
        return rate

    return float(uvloop.run(main()))


def _parts(rows: int) -> list[bytes]:
    return token_frame.encode(TokenFrame("bench", 1, 1, *_columns(rows)))


def _send_raw(endpoint: str, rows: int) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.connect(endpoint)
        parts = _parts(rows)
        while True:
            sock.send_multipart(parts)


def _receive_raw(ready: Connection, rows: int) -> float:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as sock:
        sock.linger = 0
        ready.send(f"tcp://127.0.0.1:{sock.bind_to_random_port('tcp://127.0.0.1')}")
        sock.recv_multipart()
        began, frames = time.perf_counter(), 0
        while time.perf_counter() - began < SECONDS:
            for _ in range(100):
                sock.recv_multipart()
            frames += 100
        return frames * rows / (time.perf_counter() - began)


def _send_zmq_asyncio(endpoint: str, rows: int) -> None:
    async def main() -> None:
        sock = zmq.asyncio.Context().socket(zmq.DEALER)
        sock.connect(endpoint)
        parts = _parts(rows)
        while True:
            await sock.send_multipart(parts)

    uvloop.run(main())


def _receive_zmq_asyncio(ready: Connection, rows: int) -> float:
    async def main() -> float:
        context = zmq.asyncio.Context()
        sock = context.socket(zmq.ROUTER)
        sock.linger = 0
        ready.send(f"tcp://127.0.0.1:{sock.bind_to_random_port('tcp://127.0.0.1')}")
        await sock.recv_multipart()
        began, frames = time.perf_counter(), 0
        while time.perf_counter() - began < SECONDS:
            for _ in range(100):
                await sock.recv_multipart()
            frames += 100
        rate = frames * rows / (time.perf_counter() - began)
        sock.close()
        context.term()
        return rate

    return float(uvloop.run(main()))


def _receive(answer: Connection, receive: Callable[[Connection, int], float], rows: int) -> None:
    answer.send(receive(answer, rows))


def _measure(
    send: Callable[[str, int], None], receive: Callable[[Connection, int], float], rows: int
) -> float:
    """Tokens per second between two fresh processes."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    receiver = spawn.Process(target=_receive, args=(theirs, receive, rows), daemon=True)
    receiver.start()
    endpoint = ours.recv()
    sender = spawn.Process(target=send, args=(endpoint, rows), daemon=True)
    sender.start()
    try:
        if not ours.poll(SECONDS + 10):
            raise TimeoutError("the receiver measured nothing")
        return float(ours.recv())
    finally:
        for process in (sender, receiver):
            process.kill()
            process.join()


PEERS = {
    "raw pyzmq, nothing acknowledged": (_send_raw, _receive_raw),
    "zmq.asyncio, nothing acknowledged": (_send_zmq_asyncio, _receive_zmq_asyncio),
}


def measure() -> list[Row]:
    """One row for each batch size and peer."""
    found = []
    for rows in ROWS:
        best = {"ours": 0.0, **dict.fromkeys(PEERS, 0.0)}
        ways = ((_send_ours, _receive_ours), *PEERS.values())
        for _ in range(REPEATS):
            for name, (send, receive) in zip(best, ways, strict=True):
                best[name] = max(best[name], _measure(send, receive, rows))
        ours = best.pop("ours")
        what = f"token stream, {rows} rows a frame"
        found += [Row(what, "tokens/s", ours, peer, value) for peer, value in best.items()]
    return found


if __name__ == "__main__":
    run("token_stream", "Token stream: acknowledged frames between two processes", measure)
