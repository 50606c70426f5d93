"""WAL check: whether a kill tore SQLite's write-ahead log, or it was damaged.

SQLite itself cannot distinguish the two, and takes both for the log's end. Pure. A kill cuts the log short:
the frame being written is not whole, and nothing follows. A frame that fails its checksum although it is
complete, or precedes one that passes, was changed after it was written; SQLite would silently forget
everything from there on. One change cannot be distinguished from a kill: in the last frame of a log that
SQLite began anew over a longer one. Format: https://www.sqlite.org/fileformat2.html#walformat
"""

import struct

import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 32
FRAME_BYTES = 24
_MAGIC = {0x377F0682: "<u4", 0x377F0683: ">u4"}

Words = NDArray[np.uint32]


def wal_damage(log: bytes) -> str:
    """The damage of the log, "" if it is whole or only cut short. The text ends with what to do."""
    if len(log) < HEADER_BYTES + FRAME_BYTES:
        return ""
    magic, _format, page_bytes, _sequence, *rest = struct.unpack(">8I", log[:HEADER_BYTES])
    salts, stored = tuple(rest[:2]), tuple(rest[2:])
    order = _MAGIC.get(magic)
    power_of_two = page_bytes >= 512 and page_bytes & (page_bytes - 1) == 0
    if order is None or not power_of_two or _checksum(log[:24], (0, 0), order) != stored:
        return "the header of its -wal file fails its checksum, so nothing in that can be believed"
    step = FRAME_BYTES + page_bytes
    whole = (len(log) - HEADER_BYTES) // step
    frames = np.frombuffer(log, np.uint8, whole * step, HEADER_BYTES).reshape(whole, step)
    headers = np.ascontiguousarray(frames[:, :FRAME_BYTES]).view(">u4").astype(np.uint32)
    ours = (headers[:, 2] == salts[0]) & (headers[:, 3] == salts[1])
    before = np.vstack([np.array([stored], np.uint32), headers[:-1, 4:6]])
    sums = _checksums(frames, before, order)
    sound = np.all(sums == headers[:, 4:6], axis=1)
    passes = ours & sound
    failed = np.flatnonzero(~passes)
    if not len(failed):
        return ""
    first = int(failed[0])
    written_out = len(log) == HEADER_BYTES + whole * step and ours[-1]
    # If the checksum stored in the frame was changed, the frame after it shows that.
    after = slice(first + 1, first + 2)
    expected = _checksums(frames[after], sums[first : first + 1], order)[: len(frames[after])]
    goes_on = ours[after] & np.all(expected == headers[after, 4:6], axis=1)
    if not (sound[first] or passes[first + 1 :].any() or written_out or goes_on.any()):
        return ""  # cut short, or followed by what an earlier round of the log left
    keep = HEADER_BYTES + first * step
    return (
        f"frame {first + 1} of its -wal file fails its checksum; to go on with what was committed before "
        f"that, `truncate -s {keep}` the -wal file"
    )


def _checksums(frames: NDArray[np.uint8], before: Words, order: str) -> Words:
    """Checksums of all frames at once, each from the checksum stored before it: the sums (s0, s1) over word
    pairs (x, y), s0 += x + s1 and s1 += y + s0, are linear modulo 2^32, so each pair counts by a power of
    [[1, 1], [1, 2]]."""
    page_words = np.ascontiguousarray(frames[:, FRAME_BYTES:]).view(order).astype(np.uint32)
    head_words = np.ascontiguousarray(frames[:, :8]).view(order).astype(np.uint32)
    words = np.hstack([head_words, page_words])
    x, y = words[:, 0::2], words[:, 1::2]
    powers = _powers(x.shape[1])
    state = before @ powers[0].T
    added = np.stack([x, x + y], axis=2)  # what a pair adds to (s0, s1)
    weights = powers[1:]
    # A reversed sum over pairs: the first is multiplied by the highest power.
    with np.errstate(over="ignore"):
        total = np.einsum("npj,pij->ni", added, weights, dtype=np.uint32, casting="unsafe")
        result: Words = (state + total).astype(np.uint32)
    return result


def _powers(count: int) -> Words:
    """M^count, M^(count-1), …, M^0 for M = [[1, 1], [1, 2]], modulo 2^32."""
    powers = [(1, 0, 0, 1)]
    for _ in range(count):
        a, b, c, d = powers[-1]
        powers.append(
            ((a + c) & 0xFFFFFFFF, (b + d) & 0xFFFFFFFF, (a + 2 * c) & 0xFFFFFFFF, (b + 2 * d) & 0xFFFFFFFF)
        )
    return np.array(powers[::-1], np.uint32).reshape(count + 1, 2, 2)


def _checksum(data: bytes, start: tuple[int, int], order: str) -> tuple[int, int]:
    s0, s1 = start
    words = np.frombuffer(data, order).tolist()
    for x, y in zip(words[0::2], words[1::2], strict=True):
        s0 = (s0 + x + s1) & 0xFFFFFFFF
        s1 = (s1 + y + s0) & 0xFFFFFFFF
    return s0, s1
