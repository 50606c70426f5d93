"""Well-formed messages with false contents, which a receiver must not trust.

Examples: other majors, unknown sessions, false values in every field. Owns their content. `socket_attacks`
sends them to a port.
"""

import random
from collections.abc import Iterator
from typing import Any

import msgpack
import msgspec

from gleaner.chaos.examples import example
from gleaner.supervisor import Address
from gleaner.supervisor.message import encode_body, kind_of
from gleaner.supervisor.system_messages import SYSTEM, ClaimNames, Ended, LinkActors, Watch
from gleaner.transport import control_frame

LIFE = 77
NOBODY = "nobody"
ENVELOPE: list[Any] = ["Inspect", 1, 0, NOBODY, 1, NOBODY, 0, 0, "", 0, "", b"\x80"]
"""A valid envelope, to an actor that does not exist."""
EMPTY = 4 << 20
"""Empty arrays in one frame: a byte each, and seventy in Python if they are decoded."""


def messages(rng: random.Random) -> Iterator[list[bytes]]:
    """All of them, in this order: later ones build on earlier ones."""
    yield [b""]
    yield [rng.randbytes(1000)]
    yield [bytes(5)] * 40
    yield [msgpack.packb(rng.random())]
    yield [b"\x91" * 100_000]  # nested without end
    crowd = b"\xdd" + EMPTY.to_bytes(4) + b"\x90" * EMPTY
    yield [crowd]
    yield [b"\x99" + link("DATA", 0, LIFE, 1, 0, 64)[1:] + crowd]
    yield [msgpack.packb([control_frame.MAGIC, 1, 0, "Inspect", 1, "tell"])]  # the major before this one
    yield [msgpack.packb([control_frame.MAGIC, control_frame.MAJOR + 1, 0, "of tomorrow"])]
    yield [msgpack.packb([control_frame.MAGIC, "two"])]
    yield [msgpack.packb(["XX", control_frame.MAJOR, 0, 1, LIFE, 0, 1, 0, 64])]
    data = link("DATA", 0, LIFE, 1, 0, 64, [ENVELOPE])
    yield [data]  # before any hello
    yield [link("HELLO", 0, LIFE, 5, 1, 0, 64)]  # continues a session that never existed
    yield [link("HELLO", 0, LIFE, 0, 1, 0, 64)]  # an honest hello: from now on the link is trusted
    yield [link("WELCOME", 0, 5, LIFE, 0, 64)]  # for a hello that was never sent
    yield [link("ACK", 0, LIFE, 2**40, 64, True, 2**60)]  # for frames that were never sent
    yield [link("DATA", 0, LIFE, 2**50, 0, 64, [ENVELOPE])]  # far behind a gap
    yield [link("DATA", 0, LIFE, 1, 0, 64, [ENVELOPE] * 5000)]  # more than a batch
    yield [link("DATA", 0, LIFE, 1, 0, 64, [5, None, ["Ping"], "x"])]
    yield [link("DATA", 0, LIFE + 1, 5, 0, 64, [ENVELOPE])]  # of another life
    yield [data]  # the earlier one again
    for number, changed in enumerate(_false_statements(), start=5):
        fields = [*ENVELOPE, *[None] * (max(changed) - len(ENVELOPE) + 1)]
        for index, value in changed.items():
            fields[index] = value
        yield [link("DATA", 0, LIFE, number, 0, 64, [fields])]
    yield [link("GONE", 0, LIFE)]
    yield from _false_stream_messages()
    yield [bytes((16 << 20) + 1)]  # longer than a frame may be
    yield [bytes(17 << 20)]  # so long that the connection is cut; no later message arrives


def _false_statements() -> Iterator[dict[int, Any]]:
    """False values in an envelope, by position."""
    yield {0: "NoSuchKind"}
    yield {0: 7}
    yield {0: "Failure", 2: 3, 7: 2**60}  # an answer without a request
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
        for cls in (Watch, LinkActors, Ended, ClaimNames):
            fields = {name: value for name, value in lies.items() if name in cls.__struct_fields__}
            message = msgspec.structs.replace(example(cls), **fields)
            yield {0: kind_of(message), 5: SYSTEM, 11: encode_body(message)}
    yield {5: "x" * 300}
    yield {12: "more", 13: bytes(1000)}  # a newer minor version: skipped, and the receiver does not exist


def _false_stream_messages() -> Iterator[list[bytes]]:
    """Token frames and hellos of streams without a subscriber."""
    for head, rows in (
        ([1, NOBODY, 1, 1, 3], bytes(13)),  # three rows announced, one sent
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


def link(kind: str, minor: int, *fields: Any) -> bytes:
    """A frame of a control link, with any values in its fields."""
    packed: bytes = msgpack.packb(
        [control_frame.MAGIC, control_frame.MAJOR, minor, control_frame.Type[kind].value, *fields]
    )
    return packed
