"""`RowFile`: a file that several processes fill, each with its tensor rows.

Owns the layout of a safetensors file, and the writing of rows into a file with a known layout (safetensors,
or an image of weights). A run of rows is a run of bytes, so no process needs the rest of a tensor. Does not
own completeness: the creator of a file seals it once all have written.

Format: https://huggingface.co/docs/safetensors (length of the header as u64, header as JSON, tensors).
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gleaner.actors.model.flat_image import bytes_of
from gleaner.actors.model.tensor_spec import TensorSpec, image_bytes

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
ALIGNMENT_BYTES = 8  # of the first tensor, as the format asks


@dataclass(frozen=True, slots=True)
class RowFile:
    """A planned safetensors file: its header, and the offset of each tensor."""

    header: bytes
    tensors: tuple[TensorSpec, ...]

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return max(len(self.header), image_bytes(self.tensors))

    def create(self, path: Path) -> None:
        """Make the file with its header and space for the tensors. Raises OSError: no space, or it exists."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, self.nbytes)
            _write(descriptor, memoryview(self.header), 0)
        finally:
            os.close(descriptor)


def row_file(tensors: Sequence[tuple[str, str, tuple[int, ...]]]) -> RowFile:
    """The layout for tensors of these names, dtypes (as torch names them) and shapes, in this order: the same
    in every process."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    sizes = []
    offset = 0
    for name, dtype, shape in tensors:
        nbytes = _itemsize(dtype)
        for extent in shape:
            nbytes *= extent
        end = offset + nbytes
        entries[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        sizes.append((offset, nbytes))
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT_BYTES)
    header = struct.pack("<Q", len(text)) + text
    return RowFile(
        header,
        tuple(
            TensorSpec(name, dtype, shape, len(header) + begin, nbytes)
            for (name, dtype, shape), (begin, nbytes) in zip(tensors, sizes, strict=True)
        ),
    )


def write_rows(
    path: Path,
    layout: Sequence[TensorSpec],
    mine: Mapping[str, Tensor],
    rows: Callable[[int], range],
) -> int:
    """Write the rows of this process at their offsets; returns the number of bytes.

    `mine`: by name, the rows `rows(n)` of each tensor of the layout with n rows, contiguous, on the CPU; a
    missing tensor is left to others. Raises ValueError if a tensor does not match the layout, OSError.
    """
    written = 0
    with _opened(path) as descriptor:
        for spec in layout:
            tensor = mine.get(spec.name)
            if tensor is None:
                continue
            held = rows(spec.shape[0]) if spec.shape else range(1)
            shape = (len(held), *spec.shape[1:]) if spec.shape else ()
            if tuple(tensor.shape) != shape or str(tensor.dtype) != f"torch.{spec.dtype}":
                found = f"{tensor.dtype} {list(tensor.shape)}"
                raise ValueError(f"{spec.name!r}: {found} is not rows {held} of {list(spec.shape)}")
            row_bytes = spec.nbytes // (spec.shape[0] if spec.shape else 1)
            data = bytes_of(tensor.detach().contiguous())
            _write(descriptor, data.data, spec.offset + held.start * row_bytes)
            written += len(data)
    return written


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        done = os.pwrite(descriptor, data, offset)
        data, offset = data[done:], offset + done


def _itemsize(dtype: str) -> int:
    return 4 if dtype == "float32" else 2
