"""Bytes of a simulated image: a digest, and padding that follows from the digest.

Owns the two directions, digest to bytes and back. Pure. Two images are equal exactly if their weights are. An
image that was damaged or mixed on its way is recognised from its own bytes, even if every other check missed
it.
"""

import hashlib
from functools import lru_cache

from gleaner.actors.model.tensor_spec import TensorSpec

DIGEST_BYTES = 32
LEAST_BYTES = 4096
_TENSORS = 4  # number of equal parts in an image's description
_EVERY = 16  # one of so many bytes differs under other weights, so that there are deltas worth sending


class BrokenImage(ValueError):
    """The bytes are no image of any weights: something on their way changed them."""


@lru_cache(maxsize=4)  # every host makes the same few, to compare with
def image_of(digest: bytes, size: int) -> bytes:
    """The image of the weights with this digest (32 bytes), `size` bytes long."""
    if len(digest) != DIGEST_BYTES or size < LEAST_BYTES:
        raise ValueError(f"a digest of {len(digest)} bytes and an image of {size} cannot be")
    image = bytearray(_body(size))
    image[:DIGEST_BYTES] = digest
    places = range(DIGEST_BYTES, size, _EVERY)
    image[DIGEST_BYTES::_EVERY] = hashlib.shake_256(digest).digest(len(places))
    return bytes(image)


@lru_cache(maxsize=4)
def _body(size: int) -> bytes:
    """The common bytes of all images of that size."""
    return hashlib.shake_256(size.to_bytes(8, "little")).digest(size)


def weights_of(image: bytes | memoryview) -> bytes:
    """The digest of the weights in an image. Raises `BrokenImage`."""
    digest = bytes(image[:DIGEST_BYTES])
    if len(image) < LEAST_BYTES or image != image_of(digest, len(image)):
        raise BrokenImage(f"{len(image)} bytes that begin with {digest[:8].hex()} are no image of weights")
    return digest


def image_layout(size: int) -> tuple[TensorSpec, ...]:
    """Description of an image in its manifest: equal parts, the last one takes the rest."""
    starts = [size // _TENSORS * index for index in range(_TENSORS)]
    ends = [*starts[1:], size]
    return tuple(
        TensorSpec(f"part.{index}", "uint8", (end - start,), start, end - start)
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    )
