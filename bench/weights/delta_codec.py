"""Speed of weight deltas on one core.

Usage: `python -m bench.weights.delta_codec [--json FILE] [--write-docs]`. GB/s are of the model's bytes, for
a processor second of one thread: other work of the machine slows it through caches and memory, not through
the queue. The ways take turns, and so do the limits of the same moment: a plain copy of the image, its
digest, and only writing the changes where they are known. Weights are those of `simulated_adam` at three
learning rates, in bfloat16, in memory as in a store of images (shared, pages of 4 KiB). GB is 1e9 bytes.
"""

import argparse
import json
import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import numba
import numpy as np
import xxhash
from backports import zstd
from numpy.typing import NDArray

from bench.runtime.machine import machine
from bench.weights.simulated_adam import versions
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.delta import kernels_numpy as delta_numpy
from gleaner.actors.weights.delta.choice import DELTA_SHARE
from gleaner.actors.weights.delta.codec import Kernels, apply_chunk, encode_chunk
from gleaner.actors.weights.delta.image_delta import Delta, apply
from gleaner.actors.weights.image.manifest import Manifest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "delta_codec.json"

CHUNK_BYTES = 4 << 20
BLOCK = 4 << 20  # elements that are simulated
REPEATS = 32  # of that block in the image: 256 MiB, more than any cache
STEPS = 40
RATES = (1e-7, 1e-6, 1e-5)
ROUNDS = 5
GAP_BYTES = 1 << 20
"""After each image: other mappings between two of them. See `delta_kernels.ALIAS_BYTES`."""

COPY, DIGEST = "copy of the image (np.copyto)", "digest of the image (xxh3-128)"
WRITE = "what changed written, places known"
BUILD, IN_PLACE, APART = "build: encode, bundle, hash", "apply in place, verify", "copy, apply, verify"

Image = NDArray[np.uint16]
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Way(Generic[P]):
    """One way to encode a chunk's change, and to apply it in place. `size`: of the encoding, in bytes."""

    name: str
    encode: Callable[[Image, Image], P]
    apply: Callable[[P, Image], None]
    size: Callable[[P], int]


@dataclass(slots=True)
class Measured:
    """A way at one rate of change. Rates in GB/s, one a round; `bytes_each`: for a changed element."""

    name: str
    learning_rate: float
    changed: float  # share of the elements
    bytes_each: float = 0.0
    encode: list[float] = field(default_factory=list)
    apply: list[float] = field(default_factory=list)


@dataclass(slots=True)
class GivenUp:
    """Seconds, one a round, until an image that changed everywhere is known to have no delta: from a sample,
    and by encoding until it is too large, as without one."""

    sampled_s: list[float] = field(default_factory=list)
    encoded_s: list[float] = field(default_factory=list)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.weights.delta_codec", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help=f"write docs/benchmarks.md and its figure from --json, or {RESULTS.name}; measures nothing",
    )
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of the block of 8 MiB in the image")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    from bench.weights import delta_codec_page as page  # a run that only measures needs no matplotlib

    if arguments.write_docs:
        page.write(json.loads((arguments.json or RESULTS).read_text()), ROOT / "docs")
        return
    before, began = machine(), datetime.now(UTC)
    found = measure(arguments.repeats, arguments.rounds)
    useless = given_up(BLOCK * arguments.repeats, arguments.rounds)
    results = {
        "began": began.isoformat(timespec="seconds"),
        "took_s": round((datetime.now(UTC) - began).total_seconds()),
        "machine": before,
        "image_bytes": BLOCK * 2 * arguments.repeats,
        "rows": [asdict(one) for one in found],
        "given_up": asdict(useless),
    }
    print("\n".join(page.lines(results)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


def measure(repeats: int, rounds: int) -> list[Measured]:
    """Every way at every rate of change."""
    found = []
    for rate in RATES:
        old, new = image(repeats * BLOCK), image(repeats * BLOCK)
        before: Image = np.zeros(0, np.uint16)
        after = before
        for version in versions(rate, BLOCK, STEPS, seed=1):
            before, after = after, version
        for place in range(repeats):
            part = slice(place * BLOCK, (place + 1) * BLOCK)
            old[part], new[part] = before, after
        found += at_rate(rate, old, new, rounds)
    return found


def at_rate(rate: float, old: Image, new: Image, rounds: int) -> list[Measured]:
    """Every way with one pair of images. The first round warms up: it compiles, and touches the pages."""
    changed = int(np.count_nonzero(old != new))
    rows = {
        name: Measured(name, rate, changed / old.size)
        for name in (COPY, DIGEST, WRITE, *(way.name for way in WAYS), BUILD, IN_PLACE, APART)
    }
    places = np.flatnonzero(old.view(np.uint8) != new.view(np.uint8)).astype(np.uint32)
    bytes_there, write = new.view(np.uint8)[places], numba.njit(_written, nogil=True)
    into = image(old.size)
    parts = [slice(at, at + CHUNK_BYTES // 2) for at in range(0, old.size, CHUNK_BYTES // 2)]
    manifests = [_manifest(version, one) for version, one in enumerate((old, new))]
    for turn in range(rounds + 1):
        spent: dict[tuple[str, str], float] = {}
        for way in WAYS:
            with _timed(spent, way.name, "encode"):
                encoded = [way.encode(old[part], new[part]) for part in parts]
            with _timed(spent, COPY, "apply"):
                np.copyto(into, old)
            with _timed(spent, way.name, "apply"):
                for payload, part in zip(encoded, parts, strict=True):
                    way.apply(payload, into[part])
            if not np.array_equal(into, new):
                raise AssertionError(f"{way.name}: another image came out")
            rows[way.name].bytes_each = sum(map(way.size, encoded)) / changed
        with _timed(spent, DIGEST, "apply"):
            for part in parts:
                xxhash.xxh3_128_digest(_view(into[part]))
        np.copyto(into, old)
        with _timed(spent, WRITE, "apply"):
            write(places, bytes_there, into.view(np.uint8))
        with _timed(spent, BUILD, "encode"):
            delta = Delta.build(_view(old), _view(new), *manifests)
        assert delta is not None
        rows[BUILD].bytes_each = delta.table.nbytes / changed
        np.copyto(into, old)
        with _timed(spent, IN_PLACE, "apply"):
            apply([delta], _view(into), _view(into), *manifests)
        with _timed(spent, APART, "apply"):
            apply([delta], _view(old), _view(into), *manifests)
        for (name, what), seconds in spent.items() if turn else ():
            getattr(rows[name], what).append(old.nbytes / seconds / 1e9)
    return list(rows.values())


def given_up(elements: int, rounds: int) -> GivenUp:
    """Times for an image in which every element changed."""
    old, new = image(elements), image(elements)
    new[:] = 0xFFFF
    manifests = [_manifest(version, one) for version, one in enumerate((old, new))]
    most = int(DELTA_SHARE * old.nbytes)
    found = GivenUp()
    for turn in range(rounds + 1):
        spent: dict[tuple[str, str], float] = {}
        with _timed(spent, BUILD, "sampled"):
            delta = Delta.build(_view(old), _view(new), *manifests, most_bytes=most)
        if delta is not None:
            raise AssertionError("a delta of all that there is was not given up")
        with _timed(spent, BUILD, "encoded"):
            sent = 0
            for at in range(0, old.size, CHUNK_BYTES // 2):
                part = slice(at, at + CHUNK_BYTES // 2)
                sent += len(encode_chunk(_view(old[part]), _view(new[part]), 1)[1])
                if sent > most:
                    break
        if turn:
            found.sampled_s.append(spent[BUILD, "sampled"])
            found.encoded_s.append(spent[BUILD, "encoded"])
    return found


@contextmanager
def _timed(spent: dict[tuple[str, str], float], name: str, what: str) -> Iterator[None]:
    began_s = time.thread_time()
    yield
    spent[name, what] = time.thread_time() - began_s


def image(elements: int) -> Image:
    """Memory for so many, shared as a store's images are, and touched; no two a multiple of 256 MiB apart."""
    memory = np.frombuffer(mmap.mmap(-1, elements * 2 + GAP_BYTES), np.uint16)[:elements]
    memory[:] = 0
    return memory


def _written(places: NDArray[np.uint32], values: NDArray[np.uint8], into: NDArray[np.uint8]) -> None:
    for at in range(np.uint64(places.size)):  # unsigned: numba takes no index from the end
        into[np.uint64(places[at])] = values[at]


def _view(one: Image) -> memoryview:
    return one.data.cast("B")


def _manifest(version: int, one: Image) -> Manifest:
    spec = TensorSpec("w", "bfloat16", one.shape, 0, one.nbytes)
    return Manifest.build(version, _view(one), [spec], chunk_bytes=CHUNK_BYTES)


Payload = tuple[int, bytes]


def _ours(name: str, width: int, *, compress: bool = False, loops: Kernels | None = None) -> Way[Payload]:
    def encode(old: Image, new: Image) -> Payload:
        return encode_chunk(_view(old), _view(new), width, compress=compress, loops=loops)

    def put(payload: Payload, into: Image) -> None:
        apply_chunk(payload[0], memoryview(payload[1]), _view(into), width, loops=loops)

    return Way(name, encode, put, lambda payload: len(payload[1]))


def _coordinates(old: Image, new: Image) -> tuple[NDArray[np.int32], Image]:
    at = np.flatnonzero(old != new).astype(np.int32)
    return at, new[at]


def _put_coordinates(payload: tuple[NDArray[np.int32], Image], into: Image) -> None:
    into[payload[0]] = payload[1]


def _xor(old: Image, new: Image) -> bytes:
    return zstd.compress((old ^ new).tobytes(), 1)


def _put_xor(payload: bytes, into: Image) -> None:
    into ^= np.frombuffer(zstd.decompress(payload), np.uint16)


WAYS: Sequence[Way[Any]] = (
    _ours("byte by byte", 1),
    _ours("byte by byte, zstd", 1, compress=True),
    _ours("byte by byte, plain numpy", 1, loops=delta_numpy),
    _ours("element by element", 2),
    _ours("element by element, zstd", 2, compress=True),
    Way(
        "coordinates: int32 and bfloat16 (ROSE), numpy",
        _coordinates,
        _put_coordinates,
        lambda it: it[0].nbytes + it[1].nbytes,
    ),
    Way("xor of the image, zstd (slime)", _xor, _put_xor, len),
)


if __name__ == "__main__":
    main()
