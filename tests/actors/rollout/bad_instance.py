"""A misbehaving instance: `python bad_instance.py ENDPOINT SECONDS`.

It floods the manager's stream port with whole frames of an unknown instance. It sends half of a frame and
holds the connection, and it sends hellos without reading an answer. It prints "ready" when all of that
runs.
"""

import socket
import sys
import time

import numpy as np
import zmq

from gleaner.transport import stream_control, token_frame
from gleaner.transport.stream_control import Hello
from gleaner.transport.token_frame import TokenFrame
from gleaner.transport.zap import ROUTING_MARK

FRAMES_A_BEAT, BEAT_S = 20, 0.01  # two thousand a second: forty times what an engine sends
GREETING = b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL" + bytes(48)
READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
HALF = b"\x02" + (1 << 20).to_bytes(8, "big") + b"x" * 1000  # the start of a message of one mebibyte


def half_a_frame(endpoint: str) -> socket.socket:
    """Everything that ZeroMQ requires first, and then a thousandth of a message."""
    host, _, port = endpoint.removeprefix("tcp://").partition(":")
    sock = socket.create_connection((host, int(port)))
    sock.sendall(GREETING + READY + HALF)
    return sock


def dealer(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, name: bytes) -> zmq.Socket[bytes]:
    """A connection that receives at most one message, which is never read."""
    sock = context.socket(zmq.DEALER)
    sock.setsockopt(zmq.ROUTING_ID, ROUTING_MARK + name)
    sock.setsockopt(zmq.RCVHWM, 1)
    sock.setsockopt(zmq.RCVBUF, 4096)
    sock.connect(endpoint)
    return sock


def main() -> None:
    endpoint, seconds = sys.argv[1], float(sys.argv[2])
    held = [half_a_frame(endpoint) for _ in range(8)]
    context = zmq.Context()
    flood, deaf = dealer(context, endpoint, b"flood"), dealer(context, endpoint, b"deaf")
    rows = np.arange(16)
    frame = token_frame.encode(TokenFrame("nobody", 1, 7, rows, rows, rows, np.zeros(16)))
    hello = stream_control.encode(Hello(stream_control.MAJOR, "nobody", 1, 0))
    print("ready", flush=True)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(FRAMES_A_BEAT):
            for sock, parts in ((flood, frame), (deaf, hello)):
                try:
                    sock.send_multipart(parts, zmq.NOBLOCK)
                except zmq.Again:
                    continue
        time.sleep(BEAT_S)
    assert len(held) == 8


if __name__ == "__main__":
    main()
