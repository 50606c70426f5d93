"""Safetensors header of a weight image, so that any checkpoint reader can read it.

Pure. Owns the header in front of the image's bytes, which begin at a page boundary: the file is mapped, and
tensors have the same order and gaps as in the image. Bytes of no tensor are declared too, as `PADDING`,
because the format has no gaps; layouts of this project (`gleaner.actors.model.flat_image`) have none.

Format: https://huggingface.co/docs/safetensors: length of the header as u64, little-endian, the header as
JSON that may end in spaces, the tensors' bytes.
"""

import json
import math
import struct
from collections.abc import Sequence

from gleaner.actors.model.tensor_spec import TensorSpec

PAGE_BYTES = 4096
MOST_BYTES = 100_000_000  # of a header, by the format
PADDING = "gleaner.padding."
DTYPES = {  # as torch names them: as the format does, bytes of an element
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "float8_e8m0fnu": ("F8_E8M0", 1),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint64": ("U64", 8),
    "uint32": ("U32", 4),
    "uint16": ("U16", 2),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}


class NotSafetensors(ValueError):
    """The layout cannot be declared in a header, or a file does not begin with one of ours."""


def header(tensors: Sequence[TensorSpec], nbytes: int) -> bytes:
    """The header of an image of `nbytes` bytes with these tensors: whole pages, equal for equal layouts.
    Raises NotSafetensors."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in sorted(tensors, key=lambda spec: (spec.offset, spec.nbytes)):
        kind, itemsize = DTYPES.get(spec.dtype, ("", 0))
        if math.prod(spec.shape) * itemsize != spec.nbytes or not kind or spec.offset < end:
            raise NotSafetensors(
                f"{spec.name!r}, {spec.dtype}{list(spec.shape)}, cannot be {spec.nbytes} bytes at "
                f"{spec.offset} of a safetensors file, where {end} are taken"
            )
        _pad(entries, end, spec.offset)
        end = spec.offset + spec.nbytes
        entries[spec.name] = _entry(kind, spec.shape, spec.offset, end)
    if end > nbytes:
        raise NotSafetensors(f"the tensors end at {end}, the image at {nbytes}")
    _pad(entries, end, nbytes)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % PAGE_BYTES)
    if len(text) > MOST_BYTES:
        raise NotSafetensors(f"the names of {len(tensors)} tensors are {len(text)} bytes")
    return struct.pack("<Q", len(text)) + text


def begin_of(head: bytes) -> int:
    """The offset of the image in a file with these first 8 bytes. Raises NotSafetensors."""
    begin = 8 + int.from_bytes(head, "little") if len(head) == 8 else 0
    if not 0 < begin <= MOST_BYTES + 8 or begin % PAGE_BYTES:
        raise NotSafetensors(f"{head.hex() or 'nothing'} is not the beginning of an image's file")
    return begin


def has_padding(tensors: Sequence[TensorSpec], nbytes: int) -> bool:
    """Whether an image has bytes of no tensor; loaders that know their tensors' names fail on padding."""
    return sum(spec.nbytes for spec in tensors) != nbytes


def _pad(entries: dict[str, object], begin: int, end: int) -> None:
    if begin < end:
        entries[f"{PADDING}{begin}"] = _entry("U8", (end - begin,), begin, end)


def _entry(kind: str, shape: Sequence[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
