"""Fuzz corpus: inputs that broke a decoder or reached far into one.

Owns the layout, `<folder>/<target>/<first digits of the SHA-256>`, and its bounds.
"""

import hashlib
from pathlib import Path

from gleaner.chaos.fuzz import deltas, files, wires
from gleaner.chaos.fuzz.target import Target

MAX_INPUT_BYTES = 16 << 10
"""The largest input that is kept beside others; a find is kept whatever its size."""
MAX_KEPT = 16
"""Kept inputs of a target without finds."""


def targets(scratch: Path) -> list[Target]:
    """All targets; their files are in `scratch`."""
    return [*wires.targets(), *deltas.targets(), *files.targets(scratch)]


def inputs(folder: Path, target: str) -> list[bytes]:
    """The kept inputs of a target, in a stable order."""
    return [path.read_bytes() for path in sorted((folder / target).glob("*"))]


def keep(folder: Path, target: str, data: bytes, *, find: bool) -> Path | None:
    """Write an input to the corpus, unless it exceeds the bounds; a find is always kept."""
    kept = folder / target
    if not find and (len(data) > MAX_INPUT_BYTES or len(list(kept.glob("*"))) >= MAX_KEPT):
        return None
    kept.mkdir(parents=True, exist_ok=True)
    path = kept / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path
