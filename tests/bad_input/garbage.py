"""What a careless or hostile neighbour sends to a listening port. Every function is bounded in time and size.

Owns the bytes. Knows ZMTP 3.0 (rfc.zeromq.org/spec/23) as far as it takes to get past the handshake and lie.
"""

import contextlib
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgpack
import zmq

from transport.zap import ROUTING_MARK

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
GREETING = SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
MORE, LONG, COMMAND = 1, 2, 4

ENVELOPE: list[Any] = ["Inspect", 1, 0, "nobody", 1, "nobody", 0, 0, "", 0, "", b"\x80"]
LIFE = 77


def throw(port: int, seed: int = 0) -> None:
    """Everything in this file, at one port of this host. It may hang up whenever it likes."""
    for attack in (
        random_bytes,
        half_a_greeting,
        endless,
        lying_frames,
        old_protocol,
        garbage_messages,
        knocks,
    ):
        with contextlib.suppress(OSError):
            attack(port, random.Random(f"{seed}/{port}"))


def random_bytes(port: int, rng: random.Random) -> None:
    for size in (1, 10, 64, 4096, 100_000):
        with _connected(port) as sock:
            _push(sock, rng.randbytes(size))


def half_a_greeting(port: int, rng: random.Random) -> None:
    for part in (SIGNATURE[:5], SIGNATURE, GREETING[:30], GREETING):
        with _connected(port) as sock:
            _push(sock, part)


def endless(port: int, rng: random.Random) -> None:
    """Bytes without an end of anything, for as long as they are taken (at most 16 MB, a second)."""
    block = b"a" * 65536
    for begin in (b"", GREETING):
        with _connected(port) as sock:
            until = time.monotonic() + 1.0
            for _ in range(128):
                if time.monotonic() > until:
                    break
                _push(sock, begin + block)


def lying_frames(port: int, rng: random.Random) -> None:
    """A whole handshake, then a frame that announces more than it may, or more than it brings."""
    for length in (100 << 20, 1 << 62, (1 << 64) - 1, 16 << 20):
        with _connected(port) as sock:
            _push(sock, GREETING + _ready(b"gl1#liar#1#"))
            _push(sock, bytes([LONG]) + struct.pack(">Q", length) + bytes(1000))
    with _connected(port) as sock:
        _push(sock, GREETING + bytes([COMMAND, 200]) + b"\x05READY" + rng.randbytes(194))


def old_protocol(port: int, rng: random.Random) -> None:
    """ZMTP 1.0: an identity frame, then frames without a handshake."""
    with _connected(port) as sock:
        _push(sock, b"\x05\x00abcd" + b"\x03\x00xy" * 100)


def garbage_messages(port: int, rng: random.Random) -> None:
    """Proper ZeroMQ messages whose content nobody may believe."""
    context = zmq.Context()
    try:
        for identity in (ROUTING_MARK + b"stranger#1#" + str(rng.random()).encode(), b"no mark of ours"):
            sock = context.socket(zmq.DEALER)
            sock.set(zmq.LINGER, 1000)
            sock.set(zmq.SNDTIMEO, 1000)
            sock.set(zmq.ROUTING_ID, identity)
            sock.connect(f"tcp://127.0.0.1:{port}")
            with contextlib.suppress(zmq.Again):
                for message in messages(rng):
                    sock.send_multipart(message)
            sock.close()
    finally:
        context.term()


def messages(rng: random.Random) -> Iterator[list[bytes]]:
    """No link message, links and envelopes that lie, and token frames and hellos that do."""
    yield [b""]
    yield [rng.randbytes(1000)]
    yield [msgpack.packb(rng.random())]
    yield [b"\x91" * 100_000]  # nested without an end
    yield [bytes(5)] * 40
    for link in (
        ["GL", 99, 0, "of tomorrow"],
        ["GL", "two"],
        ["XX", 2, 0, 1, LIFE, 0, 1, 0, 64],
        ["GL", 2, 0, 99],
        ["GL", 2, 0, 3, LIFE, 1, 0, 64, [ENVELOPE]],  # before any hello
        ["GL", 2, 0, 1, LIFE, 5, 1, 0, 64],  # goes on with what never was
        ["GL", 2, 0, 1, LIFE, 0, 1, 0, 64],  # an honest hello: from now on it is believed
        ["GL", 2, 0, 2, 5, LIFE, 0, 64],  # a welcome that nobody waits for
        ["GL", 2, 0, 4, LIFE, 2**40, 64, True, 2**60],  # acknowledges what was never sent
        ["GL", 2, 0, 3, LIFE, 2**50, 0, 64, [ENVELOPE]],  # far behind a gap
        ["GL", 2, 0, 3, LIFE, 1, 0, 64, [ENVELOPE] * 5000],  # more than a batch
        ["GL", 2, 0, 3, LIFE, 1, 0, 64, [5, None, ["Ping"], "x"]],
    ):
        yield [msgpack.packb(link)]
    for number, changed in enumerate(
        (
            {0: "NoSuchKind"},
            {0: 7},
            {0: "Failure", 2: 3, 7: 2**60},  # an answer to nothing
            {2: "shout"},
            {4: -1},
            {11: b"\xc1"},
            {11: "text"},
            {0: "RegisterInstance", 5: "rollout/manager", 11: msgpack.packb({"instance": 3})},
            {0: "SubmitBatch", 2: 1, 5: "rollout/manager", 7: 1, 9: 1000},
            {0: "Watch", 5: "", 11: msgpack.packb([1, 2])},
            {5: "x" * 300},
            {12: "more", 13: bytes(1000)},  # a newer minor version: skipped, and nobody of that name is here
        ),
        start=5,
    ):
        fields = [*ENVELOPE, *[None] * (max(changed) - len(ENVELOPE) + 1)]
        for index, value in changed.items():
            fields[index] = value
        yield [msgpack.packb(["GL", 2, 0, 3, LIFE, number, 0, 64, [fields]])]
    yield [msgpack.packb(["GL", 2, 0, 6, LIFE])]
    for head, rows in (
        ([1, "spot-1/engine", 1, 1, 3], bytes(13)),  # three rows announced, one brought
        ([1, "spot-1/engine", 1, 1, 2**31], b""),
        ([9, "spot-1/engine", 1, 1, 1], bytes(13)),
        ([1, "spot-1/engine", 1, 2**62, 1], bytes(13)),
        ([1, "nobody", 1, 1, 1], bytes(12) + b"\xff"),
        ([1, 5, 1, 1, 1], bytes(13)),
    ):
        yield [msgpack.packb(head), rows]
    yield [msgpack.packb(["hello", 99, "spot-1/engine", 1, 0])]
    yield [msgpack.packb(["hello", 1, "nobody", 1, 0])]
    yield [bytes((16 << 20) + 1)]  # longer than a frame may be
    yield [bytes(17 << 20)]  # so long that the connection is cut; nothing comes after it


def knocks(port: int, rng: random.Random) -> None:
    """Connections that come and go."""
    for _ in range(300):
        _connected(port).close()


@contextlib.contextmanager
def slow(ports: Sequence[int], each: int) -> Iterator[Callable[[], None]]:
    """Connections that stay and say one byte at a time: at every call of what this gives."""
    held = [sock for port in ports for _ in range(each) if (sock := _try(port)) is not None]

    def speak() -> None:
        for sock in held:
            with contextlib.suppress(OSError):
                sock.send(os.urandom(1), socket.MSG_DONTWAIT)

    try:
        yield speak
    finally:
        for sock in held:
            sock.close()


def _ready(identity: bytes) -> bytes:
    def text(value: bytes) -> bytes:
        return struct.pack(">I", len(value)) + value

    body = b"\x05READY\x0bSocket-Type" + text(b"DEALER") + b"\x08Identity" + text(identity)
    return bytes([COMMAND, len(body)]) + body


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=1.0)


def _try(port: int) -> socket.socket | None:
    try:
        return _connected(port)
    except OSError:
        return None


def _push(sock: socket.socket, data: bytes) -> None:
    """As much as is taken; being hung up on is what should happen."""
    with contextlib.suppress(OSError):
        sock.sendall(data)
