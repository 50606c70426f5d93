"""Raw pyzmq in a blocking loop, as the limit: DEALER to ROUTER over TCP loopback.

Two processes. No actors, no matching of replies, no acknowledgements; the same bytes, and the same check of
their order.
"""

import multiprocessing
import time
from array import array
from multiprocessing.connection import Connection

import zmq

from bench.runtime.task import (
    OUTSTANDING,
    AskResult,
    Effort,
    Sink,
    Task,
    TellResult,
    main,
    number_of,
    payload,
)

COUNT = b"count"
TELL = b"tell"


def _answer(ready: Connection) -> None:
    """Echo until one-way messages start; then count until the count is requested."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as sock:
        sock.linger = 0
        ready.send(f"tcp://127.0.0.1:{sock.bind_to_random_port('tcp://127.0.0.1')}")
        while True:
            parts = sock.recv_multipart()
            if parts[1] != TELL:
                sock.send_multipart(parts)
                continue
            sink = Sink()
            while (parts := sock.recv_multipart())[1] != COUNT:
                sink.take(parts[1])
            sock.send_multipart([parts[0], b"%d %d" % (sink.count, sink.disordered)])


def _ask(sock: "zmq.Socket[bytes]", seconds: float, outstanding: int) -> AskResult:
    """Ask for so long; with more than one outstanding a latency is that of a turn."""
    effort = Effort()
    clock = time.perf_counter
    latencies = array("d")
    began = clock()
    until = began + seconds
    for number in range(outstanding - 1):
        sock.send(payload(number))
    number, awaited = outstanding - 1, 0
    while (sent := clock()) < until:
        sock.send(payload(number))
        content = sock.recv()
        latencies.append(clock() - sent)
        if number_of(content) != awaited:
            raise AssertionError("another answer than awaited")
        number += 1
        awaited += 1
    asked = AskResult(latencies, clock() - began, effort.spent_s())
    for _ in range(outstanding - 1):
        sock.recv()
    return asked


def _tell(sock: "zmq.Socket[bytes]", seconds: float) -> TellResult:
    effort = Effort()
    clock = time.perf_counter
    sock.send(TELL)
    began = clock()
    until = began + seconds
    sent = 0
    while clock() < until:
        for _ in range(256):
            sock.send(payload(sent))
            sent += 1
    sock.send(COUNT)
    count, disordered = map(int, sock.recv().split())
    return TellResult(sent, count, disordered, clock() - began, effort.spent_s())


def pair(task: Task) -> None:
    """Rows `ask_1`, `ask_64` and `tell`."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    other = spawn.Process(target=_answer, args=(theirs,), daemon=True)
    other.start()
    sizes = task.sizes
    try:
        with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
            sock.linger = 0
            sock.connect(ours.recv())
            if task.wants("ask_1"):
                _ask(sock, sizes.warm_up_s, 1)
                task.report("ask_1", **_ask(sock, sizes.seconds, 1).latency())
            if task.wants("ask_64"):
                _ask(sock, sizes.warm_up_s, OUTSTANDING)
                task.report("ask_64", **_ask(sock, sizes.seconds, OUTSTANDING).rate())
            if task.wants("tell"):
                _tell(sock, sizes.warm_up_s)
                task.report("tell", **_tell(sock, sizes.seconds).figures())
    finally:
        other.kill()
        other.join()


if __name__ == "__main__":
    main(lambda: f"pyzmq {zmq.__version__}, libzmq {zmq.zmq_version()}", {"pair": pair})
