"""Attacks on a listening port by a careless or hostile neighbour.

Every attack is bounded in time and size. Owns the bytes. An attack gets a port and a random generator; its
bytes are no valid message: they must never reach an actor of the process.
"""

import contextlib
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence

import zmq

from gleaner.chaos import hostile_messages, zmtp
from gleaner.transport import bulk_frames
from gleaner.transport.keys import NodeKeys
from gleaner.transport.zap import ROUTING_MARK

Attack = Callable[[int, random.Random], None]

FLOOD = 300
"""Concurrent connections: more than a process has peers, fewer than it has descriptors."""
ENDLESS_S = 1.0
BLOCK = b"a" * 65536


def random_bytes(port: int, rng: random.Random) -> None:
    """Random bytes without a protocol."""
    for size in (1, 10, 64, 4096, 100_000):
        with zmtp.Raw(port) as raw:
            raw.push(rng.randbytes(size))


def half_greetings(port: int, _rng: random.Random) -> None:
    """A handshake that stops at some point."""
    for part in (zmtp.SIGNATURE[:5], zmtp.SIGNATURE, zmtp.GREETING[:30], zmtp.GREETING, zmtp.CURVE_GREETING):
        with zmtp.Raw(port) as raw:
            raw.push(part)
            raw.pull()


def endless(port: int, _rng: random.Random) -> None:
    """Bytes without an end of anything, for as long as the socket accepts them (at most 8 MiB, a second)."""
    for begin in (b"", zmtp.GREETING):
        with zmtp.Raw(port) as raw:
            until = time.monotonic() + ENDLESS_S
            raw.push(begin)
            for _ in range(128):
                if time.monotonic() > until or not raw.push(BLOCK):
                    break


def huge_lengths(port: int, rng: random.Random) -> None:
    """A whole handshake, then a frame that announces more than allowed, or more than it contains."""
    for length in (100 << 20, 1 << 62, (1 << 64) - 1, 16 << 20):
        with _greeted(port, rng) as raw:
            raw.push(bytes([zmtp.LONG]) + struct.pack(">Q", length) + bytes(1000))
    with zmtp.Raw(port) as raw:
        raw.push(zmtp.GREETING + bytes([zmtp.COMMAND, 200]) + b"\x05READY" + rng.randbytes(194))


def garbage_frames(port: int, rng: random.Random) -> None:
    """A whole handshake, then frames of noise, with every flag there is."""
    with _greeted(port, rng) as raw:
        for size in (0, 1, 100, 5000):
            raw.push(zmtp.message([rng.randbytes(size)]))
            raw.push(zmtp.message([b"", rng.randbytes(size), b""]))
    for flags in (zmtp.COMMAND, zmtp.COMMAND | zmtp.MORE, 0xF8):
        with _greeted(port, rng) as raw:
            raw.push(zmtp.frame(rng.randbytes(60), flags))


def many_parts(port: int, rng: random.Random) -> None:
    """Messages of more parts than any wire allows, and one that never ends (a second)."""
    with _greeted(port, rng) as raw:
        raw.push(zmtp.message([bytes(5)] * 40))
        raw.push(zmtp.message([b""] * 5000))
    with _greeted(port, rng) as raw:
        until = time.monotonic() + ENDLESS_S
        for _ in range(200):
            if time.monotonic() > until or not raw.push(zmtp.frame(bytes(1000), zmtp.MORE) * 10):
                break


def old_protocol(port: int, _rng: random.Random) -> None:
    """ZMTP 1.0: an identity frame, then frames without a handshake."""
    with zmtp.Raw(port) as raw:
        raw.push(b"\x05\x00abcd" + b"\x03\x00xy" * 100)


def forged_identities(port: int, rng: random.Random) -> None:
    """Routing ids without our mark, of other processes, and of no text."""
    for identity in (
        b"",
        b"x",
        b"no mark of ours",
        bytes(255),
        ROUTING_MARK + b"head#1#1.1#",
        b"\x00\xff" * 20,
    ):
        with zmtp.Raw(port) as raw:
            raw.push(zmtp.GREETING + zmtp.ready(identity))
            raw.push(zmtp.message([hostile_messages.link("HELLO", 0, hostile_messages.LIFE, 0, 1, 0, 64)]))
            raw.push(
                zmtp.message(
                    [
                        hostile_messages.link(
                            "DATA", 0, hostile_messages.LIFE, 1, 0, 64, [hostile_messages.ENVELOPE]
                        )
                    ]
                )
            )
    for kind in (b"ROUTER", b"REP", b"PUB", b"STREAM", b"x" * 200):
        with zmtp.Raw(port) as raw:
            raw.push(zmtp.GREETING + zmtp.ready(ROUTING_MARK + b"liar#1#1.1#", kind) + zmtp.message([b"x"]))


def lying_messages(port: int, rng: random.Random) -> None:
    """Valid ZeroMQ messages with contents that no receiver may trust: other majors, other types, unknown
    sessions, repeated old frames, envelopes and token frames with false values."""
    identity = ROUTING_MARK + b"stranger#1#" + str(rng.random()).encode()
    with _dealer(port, identity) as sock, contextlib.suppress(zmq.Again):
        for parts in hostile_messages.messages(rng):
            sock.send_multipart(parts)


def lying_member(keys: NodeKeys, server_key: str, victim: str) -> Attack:
    """A trusted peer that has become hostile: the same false messages behind a whole CURVE handshake, first
    under its own routing id, then under those of `victim` (a public key) and of no known peer."""

    def attack(port: int, rng: random.Random) -> None:
        own = ROUTING_MARK + f"member#1#{rng.random()}#{keys.public}".encode()
        forged = ROUTING_MARK + f"friend#1#{rng.random()}#{victim}".encode()
        for identity in (own, forged, b"no mark of ours", bytes(100)):
            with _dealer(port, identity, keys, server_key) as sock, contextlib.suppress(zmq.Again):
                for parts in hostile_messages.messages(rng):
                    sock.send_multipart(parts)

    return attack


def stolen_chunks(port: int, rng: random.Random) -> None:
    """Bulk requests of every kind but a signed one."""
    request = bulk_frames.Request(rng.randbytes(16), 1, 0, 1 << 16, 0)
    signed = bulk_frames.encode_request(request, rng.randbytes(bulk_frames.SECRET_BYTES))
    for data in (
        rng.randbytes(bulk_frames.REQUEST_BYTES),
        bulk_frames.MAGIC + rng.randbytes(76),
        signed,
        signed[:40],
        signed * 1000,
    ):
        with zmtp.Raw(port) as raw:
            raw.push(data)
            raw.pull()


def knocks(port: int, _rng: random.Random) -> None:
    """Connections that open and close."""
    for _ in range(FLOOD):
        zmtp.Raw(port).cut()


def flood(port: int, rng: random.Random) -> None:
    """Connections that stay open, all at once, after half a greeting."""
    held: list[zmtp.Raw] = []
    for _ in range(FLOOD):
        with contextlib.suppress(OSError):
            held.append(zmtp.Raw(port))
            held[-1].drip(zmtp.GREETING[: rng.randrange(64)])
    for raw in held:
        raw.cut()


ATTACKS: tuple[Attack, ...] = (
    random_bytes,
    half_greetings,
    endless,
    huge_lengths,
    garbage_frames,
    many_parts,
    old_protocol,
    forged_identities,
    lying_messages,
    stolen_chunks,
    knocks,
    flood,
)


def throw(port: int, seed: int = 0, attacks: Sequence[Attack] = ATTACKS) -> None:
    """Every attack, at one port of this host. The port may close the connection at any time."""
    for attack in attacks:
        with contextlib.suppress(OSError):
            attack(port, random.Random(f"{seed}/{attack.__name__}/{port}"))


@contextlib.contextmanager
def slow(ports: Sequence[int], each: int) -> Iterator[Callable[[], None]]:
    """Connections that stay open and send one byte at a time: at every call of the returned function."""
    rng = random.Random(0)
    held: list[zmtp.Raw] = []
    for port in ports:
        for _ in range(each):
            with contextlib.suppress(OSError):
                held.append(zmtp.Raw(port))

    def speak() -> None:
        for raw in held:
            raw.drip(rng.randbytes(1))

    try:
        yield speak
    finally:
        for raw in held:
            raw.cut()


@contextlib.contextmanager
def _greeted(port: int, rng: random.Random) -> Iterator[zmtp.Raw]:
    identity = ROUTING_MARK + b"liar#1#" + str(rng.random()).encode() + b"#"
    with zmtp.Raw(port) as raw:
        raw.push(zmtp.GREETING + zmtp.ready(identity))
        yield raw


@contextlib.contextmanager
def _dealer(
    port: int, identity: bytes, keys: NodeKeys | None = None, server_key: str = ""
) -> Iterator["zmq.Socket[bytes]"]:
    """A real DEALER: libzmq's own handshake, our bytes."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.set(zmq.LINGER, 1000)
        sock.set(zmq.SNDTIMEO, 1000)
        sock.set(zmq.ROUTING_ID, identity)
        if keys is not None:
            sock.set(zmq.CURVE_SERVERKEY, server_key.encode())
            sock.set(zmq.CURVE_PUBLICKEY, keys.public.encode())
            sock.set(zmq.CURVE_SECRETKEY, keys.secret.encode())
        sock.connect(f"tcp://127.0.0.1:{port}")
        yield sock
