"""Fuzz targets for weight deltas, which any peer may relay."""

import msgspec

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.delta.codec import DeltaError, apply_chunk, encode_chunk
from gleaner.actors.weights.delta.table import BadDelta, DeltaTable, Row, padded
from gleaner.actors.weights.disk.codec import (
    CHECKSUMS,
    ENCODINGS,
    DiskDeltaError,
    apply_tensor,
    encode_tensor,
)
from gleaner.actors.weights.disk.layout import (
    HEADER_LENGTH,
    Index,
    Terms,
    read_header,
    read_index,
    write_header,
    write_index,
)
from gleaner.actors.weights.image.manifest import Manifest
from gleaner.chaos.fuzz.target import Target, WrongAccept, same
from gleaner.transport.bulk_frames import Chunk

_BASE = bytes(range(256)) * 8 + b"end"  # a chunk whose length is not a multiple of an element's
_GUARD = bytes(64)


def targets() -> list[Target]:
    """All of them."""
    return [
        Target("delta_payload", _payload, (DeltaError,), _payloads),
        Target("delta_table", _table, (BadDelta,), _tables),
        Target("disk_delta", _disk_delta, (DiskDeltaError,), _disk_deltas),
        Target("disk_index", _disk_index, (DiskDeltaError,), _disk_indexes),
        Target("disk_header", _disk_header, (DiskDeltaError,), _disk_headers),
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


def _disk_delta(data: bytes) -> None:
    """A byte for the encoding, the difference of a tensor."""
    memory = bytearray(_GUARD + _BASE + _GUARD)
    end = len(memory) - len(_GUARD)
    tensor = memoryview(memory)[len(_GUARD) : end]
    encoding = ENCODINGS[(*data[:1], 0)[0] % len(ENCODINGS)]
    try:
        apply_tensor(memoryview(data)[1:], tensor, encoding)
    finally:
        if memory[: len(_GUARD)] != _GUARD or memory[end:] != _GUARD:
            raise WrongAccept("bytes beside the tensor were written")
    again = bytearray(_BASE)
    payload = encode_tensor(memoryview(_BASE), tensor, encoding)
    if payload is not None:
        apply_tensor(memoryview(payload), memoryview(again), encoding)
    same(bytes(tensor), bytes(again))


def _disk_deltas() -> list[bytes]:
    some = bytearray(_BASE)
    some[40] ^= 1
    some[2000] ^= 0x5A
    found = []
    for number, encoding in enumerate(ENCODINGS):
        for new in (bytes(some), bytes(len(_BASE))):
            payload = encode_tensor(memoryview(_BASE), memoryview(new), encoding)
            found.append(bytes([number]) + (payload or b""))
    return found


def _disk_index(data: bytes) -> None:
    index = read_index(data)
    same(index, read_index(write_index(index)))


def _disk_indexes() -> list[bytes]:
    files = {"a": "model-00000-of-00001.safetensors", "b": "model.safetensors"}
    return [
        write_index(Index(None, None, files)),
        write_index(Index(7, None, files, "00ff")),
        *(
            write_index(Index(7, Terms(6, encoding, name), {}))
            for encoding in ENCODINGS
            for name in CHECKSUMS
        ),
    ]


def _disk_header(data: bytes) -> None:
    """The header's JSON; the last tensor's entry gives the file's length, which here is the only one."""
    header = read_header(data, HEADER_LENGTH.size + len(data) + 700)
    text = write_header(header.tensors, header.metadata)[HEADER_LENGTH.size :]
    again = read_header(text, HEADER_LENGTH.size + len(text) + 700)
    same(
        [(one.name, one.dtype, one.shape, one.nbytes) for one in header.tensors],
        [(one.name, one.dtype, one.shape, one.nbytes) for one in again.tensors],
    )
    same(header.metadata, again.metadata)


def _disk_headers() -> list[bytes]:
    tensors = (TensorSpec("w", "bfloat16", (50, 7), 0, 700),)
    halves = (TensorSpec("a", "uint8", (350,), 0, 350), TensorSpec("b", "float16", (5, 35), 0, 350))
    return [
        write_header(specs, metadata)[HEADER_LENGTH.size :]
        for specs in (tensors, halves)
        for metadata in ({}, {"w": "0" * 32})
    ]


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
    whole = msgspec.structs.replace(bare, root=bare.expected_root())
    rest = msgspec.structs.replace(bare, rows=(Row(2, 1, 1, 0, 8),), bundles=(Chunk(0, 8, bytes(16)),))
    return [whole.encode(), DeltaTable.join({"a": whole, "b": rest}).encode()]
