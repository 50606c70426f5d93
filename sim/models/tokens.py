"""Tokens and log-probs of simulated responses: a function of the request, the weights and the position.

Nothing else enters. A response that moved between instances can therefore be compared with its correct
tokens and log-probs, one by one. Of a request its seed enters, and, where a model is asked for it, its
prompt and sampling parameters too (`request_origin`). Pure, and vectorised: a frame of rows is one call.

The generator is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), counter-based as in
`gleaner.actors.engine.builtin.token_sampling`.
"""

import hashlib
import struct

import msgspec
import numpy as np
from numpy.typing import NDArray

from gleaner.actors.protocol.sampling_params import Sampling

# Arrays of one number: numpy makes one of each scalar that it meets, which takes as long as its work.
_GAMMA, _MIX_1, _MIX_2, _LOW_BITS, _ONE, _BY_27, _BY_30, _BY_31, _BY_32 = (
    np.array(number, np.uint64)
    for number in (
        0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xFFFFFF, 1, 27, 30, 31, 32
    )
)  # fmt: skip
_MASK = 2**64 - 1

LEAST_LOGPROB = -4.0
"""Log-probs lie between this and 0; they follow from what their tokens follow from."""
_LOGPROB_STEP = np.array(LEAST_LOGPROB / 2**24, np.float32)


def mix(value: int) -> int:
    """A 64-bit number from another one; neighbours map to distant numbers."""
    z = (value + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def request_origin(seed: int, prompt: bytes, temperature: float, sampling: Sampling | None) -> int:
    """A number that names what a model is asked for: another seed, prompt (u32, raw) or sampling parameter
    gives another one. It takes the place of the seed."""
    digest = hashlib.blake2b(prompt, digest_size=8)
    digest.update(struct.pack("<Qd", seed & _MASK, temperature))
    if sampling is not None:
        digest.update(msgspec.msgpack.encode(sampling))
    return int.from_bytes(digest.digest(), "little")


def request_key(origin: int, weights: bytes = b"") -> int:
    """The start of a request's stream. `origin`: its seed, or its `request_origin`. `weights`: a digest of
    the version that decodes, if tokens must depend on it; empty if they must not."""
    return mix((origin ^ int.from_bytes(weights[:8], "little")) & _MASK)


def tokens_at(
    keys: NDArray[np.uint64], positions: NDArray[np.int64], vocabulary: int
) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """The token and log-prob at each (key, position in the response); tokens are 1 to vocabulary - 1."""
    z = positions.astype(np.uint64)
    z += _ONE
    z *= _GAMMA
    z += keys
    shifted = z >> _BY_30
    z ^= shifted
    z *= _MIX_1
    np.right_shift(z, _BY_27, out=shifted)
    z ^= shifted
    z *= _MIX_2
    np.right_shift(z, _BY_31, out=shifted)
    z ^= shifted
    np.right_shift(z, _BY_32, out=shifted)
    shifted %= np.uint64(vocabulary - 1)
    shifted += _ONE
    z &= _LOW_BITS
    logprobs = z.astype(np.float32)
    logprobs *= _LOGPROB_STEP
    return shifted.astype(np.uint32), logprobs


def response_with_logprobs(
    origin: int, count: int, vocabulary: int, weights: bytes = b""
) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """The first `count` tokens and log-probs that a request must have, whichever instance decoded them."""
    keys = np.full(count, request_key(origin, weights), np.uint64)
    return tokens_at(keys, np.arange(count, dtype=np.int64), vocabulary)


def response(origin: int, count: int, vocabulary: int, weights: bytes = b"") -> NDArray[np.uint32]:
    """The tokens of `response_with_logprobs`."""
    return response_with_logprobs(origin, count, vocabulary, weights)[0]
