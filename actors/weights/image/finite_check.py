"""NaN and infinity check for an image of weights.

With NaN or infinity in the weights, the tokens are meaningless. Pure. An element is not finite if all bits of
its exponent are set, so each element is read once, as an integer. The check runs at the rate at which an
image is hashed (docs/weights.md), in parallel on another core.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gleaner.actors.model.byte_ranges import Run
from gleaner.actors.model.tensor_spec import TensorSpec

_EXPONENTS = {
    "bfloat16": (np.uint16, 0x7F80),
    "float16": (np.uint16, 0x7C00),
    "float32": (np.uint32, 0x7F800000),
    "float64": (np.uint64, 0x7FF0000000000000),
    "float8_e5m2": (np.uint8, 0x7C),
    "float8_e4m3fn": (np.uint8, 0x7F),  # it has no infinity, and one NaN of either sign
}
"""By dtype: the integer of its width, and the bits that are all set where an element is no number."""
_BLOCK_BYTES = 1 << 20  # the copy of a block stays in the cache


def not_finite(image: memoryview, tensors: Sequence[TensorSpec], runs: Sequence[Run] | None = None) -> str:
    """The first of these tensors that holds NaN or infinity; "" if none does. runs: the only bytes of the
    image that are read. Integers and unknown dtypes are skipped."""
    for spec in tensors:
        exponent = _EXPONENTS.get(spec.dtype)
        if exponent is None:
            continue
        integer, mask = exponent
        for begin, end in _within(spec, runs):
            whole = (end - begin) // np.dtype(integer).itemsize
            if whole and not _finite(np.frombuffer(image, integer, whole, begin), mask):
                return spec.name
    return ""


def _within(spec: TensorSpec, runs: Sequence[Run] | None) -> Iterator[tuple[int, int]]:
    begin, end = spec.offset, spec.offset + spec.nbytes
    if runs is None:
        yield begin, end
        return
    for run in runs:
        first, last = max(begin, run.offset), min(end, run.end)
        if first < last:
            yield first, last


def _finite(elements: NDArray[np.unsignedinteger], mask: int) -> bool:
    each = _BLOCK_BYTES // elements.itemsize
    block = np.empty(min(each, elements.size), elements.dtype)
    for first in range(0, elements.size, each):
        part = elements[first : first + each]
        exponents = np.bitwise_and(part, mask, out=block[: part.size])
        if exponents.max() == mask:
            return False
    return True
