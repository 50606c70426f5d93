"""What a careless or hostile neighbour sends to a listening port. Every attack is bounded in time and size.

Owns the bytes. An attack gets a port and a random generator; what it sends is nobody's message: no actor of
the process may ever see anything of it.
"""

import contextlib
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgpack
import msgspec
import zmq

from chaos import zmtp
from chaos.examples import example
from supervisor import Address
from supervisor.message import encode_body, kind_of
from supervisor.system_messages import SYSTEM, Beat, ClaimNames, Ended, LinkActors, Watch
from transport import bulk_frames, control_frame
from transport.keys import NodeKeys
from transport.zap import ROUTING_MARK

Attack = Callable[[int, random.Random], None]

LIFE = 77
NOBODY = "nobody"
ENVELOPE: list[Any] = ["Inspect", 1, 0, NOBODY, 1, NOBODY, 0, 0, "", 0, "", b"\x80"]
"""An envelope that is believed, to an actor that is not there."""
FLOOD = 300
"""Connections that stand at once: more than a process has peers, fewer than it has descriptors."""
EMPTY = 4 << 20
"""Empty arrays in one frame: a byte each, and seventy in Python if somebody makes them."""
ENDLESS_S = 1.0
BLOCK = b"a" * 65536


def random_bytes(port: int, rng: random.Random) -> None:
    """No protocol at all."""
    for size in (1, 10, 64, 4096, 100_000):
        with zmtp.Raw(port) as raw:
            raw.push(rng.randbytes(size))


def half_greetings(port: int, _rng: random.Random) -> None:
    """A handshake that stops somewhere."""
    for part in (zmtp.SIGNATURE[:5], zmtp.SIGNATURE, zmtp.GREETING[:30], zmtp.GREETING, zmtp.CURVE_GREETING):
        with zmtp.Raw(port) as raw:
            raw.push(part)
            raw.pull()


def endless(port: int, _rng: random.Random) -> None:
    """Bytes without an end of anything, for as long as they are taken (at most 8 MiB, a second)."""
    for begin in (b"", zmtp.GREETING):
        with zmtp.Raw(port) as raw:
            until = time.monotonic() + ENDLESS_S
            raw.push(begin)
            for _ in range(128):
                if time.monotonic() > until or not raw.push(BLOCK):
                    break


def huge_lengths(port: int, rng: random.Random) -> None:
    """A whole handshake, then a frame that announces more than it may, or more than it brings."""
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
    """Messages of more parts than any wire has, and one that never ends (a second)."""
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
            raw.push(zmtp.message([_link("HELLO", 0, LIFE, 0, 1, 0, 64)]))
            raw.push(zmtp.message([_link("DATA", 0, LIFE, 1, 0, 64, [ENVELOPE])]))
    for kind in (b"ROUTER", b"REP", b"PUB", b"STREAM", b"x" * 200):
        with zmtp.Raw(port) as raw:
            raw.push(zmtp.GREETING + zmtp.ready(ROUTING_MARK + b"liar#1#1.1#", kind) + zmtp.message([b"x"]))


def lying_messages(port: int, rng: random.Random) -> None:
    """Proper ZeroMQ messages whose content nobody may believe: other majors, other types, sessions that never
    were, old frames said again, envelopes and token frames that lie."""
    identity = ROUTING_MARK + b"stranger#1#" + str(rng.random()).encode()
    with _dealer(port, identity) as sock, contextlib.suppress(zmq.Again):
        for parts in messages(rng):
            sock.send_multipart(parts)


def lying_member(keys: NodeKeys, server_key: str, victim: str) -> Attack:
    """What one does who is trusted and has gone bad: the same lies behind a whole CURVE handshake, first
    under its own routing id, then under those of `victim` (a public key) and of nobody."""

    def attack(port: int, rng: random.Random) -> None:
        own = ROUTING_MARK + f"member#1#{rng.random()}#{keys.public}".encode()
        forged = ROUTING_MARK + f"friend#1#{rng.random()}#{victim}".encode()
        for identity in (own, forged, b"no mark of ours", bytes(100)):
            with _dealer(port, identity, keys, server_key) as sock, contextlib.suppress(zmq.Again):
                for parts in messages(rng):
                    sock.send_multipart(parts)

    return attack


def messages(rng: random.Random) -> Iterator[list[bytes]]:
    """What `lying_messages` says, in this order."""
    yield [b""]
    yield [rng.randbytes(1000)]
    yield [bytes(5)] * 40
    yield [msgpack.packb(rng.random())]
    yield [b"\x91" * 100_000]  # nested without an end
    crowd = b"\xdd" + EMPTY.to_bytes(4) + b"\x90" * EMPTY
    yield [crowd]
    yield [b"\x99" + _link("DATA", 0, LIFE, 1, 0, 64)[1:] + crowd]
    yield [msgpack.packb([control_frame.MAGIC, 1, 0, "Inspect", 1, "tell"])]  # the major before this one
    yield [msgpack.packb([control_frame.MAGIC, control_frame.MAJOR + 1, 0, "of tomorrow"])]
    yield [msgpack.packb([control_frame.MAGIC, "two"])]
    yield [msgpack.packb(["XX", control_frame.MAJOR, 0, 1, LIFE, 0, 1, 0, 64])]
    data = _link("DATA", 0, LIFE, 1, 0, 64, [ENVELOPE])
    yield [data]  # before any hello
    yield [_link("HELLO", 0, LIFE, 5, 1, 0, 64)]  # goes on with what never was
    yield [_link("HELLO", 0, LIFE, 0, 1, 0, 64)]  # an honest hello: from now on it is believed
    yield [_link("WELCOME", 0, 5, LIFE, 0, 64)]  # that nobody waits for
    yield [_link("ACK", 0, LIFE, 2**40, 64, True, 2**60)]  # of what was never sent
    yield [_link("DATA", 0, LIFE, 2**50, 0, 64, [ENVELOPE])]  # far behind a gap
    yield [_link("DATA", 0, LIFE, 1, 0, 64, [ENVELOPE] * 5000)]  # more than a batch
    yield [_link("DATA", 0, LIFE, 1, 0, 64, [5, None, ["Ping"], "x"])]
    yield [_link("DATA", 0, LIFE + 1, 5, 0, 64, [ENVELOPE])]  # of another life
    yield [data]  # an old one again
    for number, changed in enumerate(_lies(), start=5):
        fields = [*ENVELOPE, *[None] * (max(changed) - len(ENVELOPE) + 1)]
        for index, value in changed.items():
            fields[index] = value
        yield [_link("DATA", 0, LIFE, number, 0, 64, [fields])]
    yield [_link("GONE", 0, LIFE)]
    yield from _stream_lies()
    yield [bytes((16 << 20) + 1)]  # longer than a frame may be
    yield [bytes(17 << 20)]  # so long that the connection is cut; nothing comes after it


def _lies() -> Iterator[dict[int, Any]]:
    """What is wrong in an envelope, by position."""
    yield {0: "NoSuchKind"}
    yield {0: 7}
    yield {0: "Failure", 2: 3, 7: 2**60}  # an answer to nothing
    yield {2: "shout"}
    yield {4: -1}
    yield {11: b"\xc1"}
    yield {11: "text"}
    yield {0: "RegisterInstance", 5: "rollout/manager", 11: msgpack.packb({"instance": 3})}
    yield {0: "SubmitBatch", 2: 1, 5: "rollout/manager", 7: 1, 9: 1000}
    yield {0: "Watch", 5: SYSTEM, 11: msgpack.packb([1, 2])}
    for endpoint, key in (("nonsense", ""), ("tcp://127.0.0.1:1", "#" * 40), ("tcp://[::1:7", ""), ("", "x")):
        source = Address(name="a", endpoint=endpoint, public_key=key, incarnation=1)
        lies = {"endpoint": endpoint, "public_key": key, "source": source}
        for cls in (Watch, LinkActors, Ended, Beat, ClaimNames):
            fields = {name: value for name, value in lies.items() if name in cls.__struct_fields__}
            message = msgspec.structs.replace(example(cls), **fields)
            yield {0: kind_of(message), 5: SYSTEM, 11: encode_body(message)}
    yield {5: "x" * 300}
    yield {12: "more", 13: bytes(1000)}  # a newer minor version: skipped, and nobody of that name is here


def _stream_lies() -> Iterator[list[bytes]]:
    """Token frames and hellos of streams that nobody wants."""
    for head, rows in (
        ([1, NOBODY, 1, 1, 3], bytes(13)),  # three rows announced, one brought
        ([1, NOBODY, 1, 1, 2**31], b""),
        ([9, NOBODY, 1, 1, 1], bytes(13)),
        ([1, NOBODY, 1, 2**62, 1], bytes(13)),
        ([1, NOBODY, 1, 1, 1], bytes(12) + b"\xff"),
        ([1, 5, 1, 1, 1], bytes(13)),
    ):
        yield [msgpack.packb(head), rows]
    yield [msgpack.packb(["hello", 99, NOBODY, 1, 0])]
    yield [msgpack.packb(["hello", 1, NOBODY, 1, 0])]
    yield [msgpack.packb(["hello", 1, "x" * 300, 1, 0])]


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
    """Connections that come and go."""
    for _ in range(FLOOD):
        zmtp.Raw(port).cut()


def flood(port: int, rng: random.Random) -> None:
    """Connections that stand, all at once, and say half a greeting."""
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
    """Every attack, at one port of this host. It may hang up whenever it likes."""
    for attack in attacks:
        with contextlib.suppress(OSError):
            attack(port, random.Random(f"{seed}/{attack.__name__}/{port}"))


@contextlib.contextmanager
def slow(ports: Sequence[int], each: int) -> Iterator[Callable[[], None]]:
    """Connections that stay and say one byte at a time: at every call of what this gives."""
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


def _link(kind: str, minor: int, *fields: Any) -> bytes:
    """A frame of a control link, whatever its fields hold."""
    packed: bytes = msgpack.packb(
        [control_frame.MAGIC, control_frame.MAJOR, minor, control_frame.Type[kind].value, *fields]
    )
    return packed


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
