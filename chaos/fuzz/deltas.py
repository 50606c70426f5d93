"""Fuzz targets: what says how weights changed, from whoever relays it."""

import msgspec

from actors.weights.delta_codec import DeltaError, apply_chunk, encode_chunk
from actors.weights.delta_table import BadDelta, DeltaTable, Row, padded
from actors.weights.manifest import Manifest
from chaos.fuzz.target import Target, WrongAccept, same
from transport.bulk_frames import Chunk

_BASE = bytes(range(256)) * 8 + b"end"  # a chunk whose length is no multiple of an element's
_GUARD = bytes(64)


def targets() -> list[Target]:
    """All of them."""
    return [
        Target("delta_payload", _payload, (DeltaError,), _payloads),
        Target("delta_table", _table, (BadDelta,), _tables),
    ]


def _payload(data: bytes) -> None:
    """A byte for the codec, one for the width, the payload."""
    memory = bytearray(_GUARD + _BASE + _GUARD)
    end = len(memory) - len(_GUARD)
    chunk = memoryview(memory)[len(_GUARD) : end]
    codec, width = (*data[:2], 0, 0)[:2]
    try:
        apply_chunk(codec, memoryview(data)[2:], chunk, width)
    finally:
        if memory[: len(_GUARD)] != _GUARD or memory[end:] != _GUARD:
            raise WrongAccept("bytes beside the chunk were written")
    result = bytes(chunk)
    again = bytearray(_BASE)
    apply_chunk(*_encoded(result, width), memoryview(again), width)
    same(result, bytes(again))


def _encoded(new: bytes, width: int) -> tuple[int, memoryview]:
    codec, payload = encode_chunk(memoryview(_BASE), memoryview(new), width)
    return codec, memoryview(payload)


def _payloads() -> list[bytes]:
    few, some, all_of_it = bytearray(_BASE), bytearray(_BASE), bytes(len(_BASE))
    few[500] ^= 1
    for at in range(40, 2000, 97):
        some[at] ^= 0x5A
    found = []
    for width in (1, 2, 4):
        for new in (_BASE, bytes(few), bytes(some), all_of_it):
            for compress in (False, True):
                codec, payload = encode_chunk(memoryview(_BASE), memoryview(new), width, compress=compress)
                found.append(bytes([codec, width]) + payload)
    return found


def _table(data: bytes) -> None:
    value = DeltaTable.decode(data)
    same(value, DeltaTable.decode(value.encode()))
    if value.encode() not in _tables():
        raise WrongAccept("another table has the root of this one")


def _tables() -> list[bytes]:
    manifest = Manifest.build(3, memoryview(_BASE), [], chunk_bytes=4096)
    rows = (Row(0, 2, 2, 0, 100), Row(4, 1, 1, padded(100), 4096))
    bare = DeltaTable(
        base_version=3,
        base_root=manifest.root,
        version=4,
        target_root=bytes(32),
        rows=rows,
        bundles=(Chunk(0, padded(100) + 4096, bytes(16)),),
        root=b"",
    )
    return [msgspec.structs.replace(bare, root=bare.expected_root()).encode()]
