"""Mutations: bytes that are almost valid, drawn from a seed.

Owns the kinds of errors. Pure: the same seed and the same originals give the same bytes.
"""

import random
from collections.abc import Callable, Iterator, Sequence

MAX_BYTES = 1 << 16
"""Size limit of a mutation: long enough for wrong values in every length field."""

MARKERS = bytes(
    [0x00, 0x80, 0x90, 0xA0, 0xC0, 0xC1, 0xC4, 0xC6, 0xC7, 0xCF, 0xD3, 0xDB, 0xDD, 0xDF, 0xE0, 0xFF]
)
"""First bytes of MessagePack's kinds, one that it does not have (C1), and the ends of a byte."""
LENGTHS = [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x00\x00", b"\xff" * 8]
TEXTS = [
    b"\xed\xa0\x80",
    b"\x00",
    b"nan",
    b"-1",
    b"1e999",
    b"\xef\xbb\xbf",
    b'"',
    b"\n",
    b"\xf0\x9f\x90\x8d",
    b"'''",
]


def mutations(originals: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """`count` variants of `originals`, each after one to four changes."""
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            rng.choice(_CHANGES)(data, rng, originals)
            del data[MAX_BYTES:]
        yield bytes(data)


Change = Callable[[bytearray, random.Random, Sequence[bytes]], None]


def _flip(data: bytearray, rng: random.Random, _all: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _mark(data: bytearray, rng: random.Random, _all: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice(MARKERS)


def _cut(data: bytearray, rng: random.Random, _all: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _drop(data: bytearray, rng: random.Random, _all: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.randrange(1, 9)]


def _insert(data: bytearray, rng: random.Random, _all: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice((rng.randbytes(rng.randrange(1, 9)), rng.choice(TEXTS)))


def _repeat(data: bytearray, rng: random.Random, _all: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    part = bytes(data[at : at + rng.randrange(1, 33)])
    data[at:at] = part * rng.choice((1, 2, 100, 2000))


def _false_length(data: bytearray, rng: random.Random, _all: Sequence[bytes]) -> None:
    length = rng.choice(LENGTHS)
    at = rng.randrange(len(data) + 1)
    data[at : at + len(length)] = length


def _splice(data: bytearray, rng: random.Random, originals: Sequence[bytes]) -> None:
    other = rng.choice(originals)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


_CHANGES: list[Change] = [_flip, _flip, _mark, _mark, _cut, _drop, _insert, _repeat, _false_length, _splice]
