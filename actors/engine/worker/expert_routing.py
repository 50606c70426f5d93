"""`ExpertPiece`: routed experts of one attempt's tokens, from an engine. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gleaner.actors.protocol.experts import PART_BYTES, ExpertRows, ExpertsWanted

DTYPES = "uint8", "uint16", "int32"
"""Dtypes of rows, narrowest first."""


class NoRows(ValueError):
    """The engine's data are no table of so many rows."""


@dataclass(frozen=True, slots=True)
class ExpertPiece:
    """`rows`: [tokens of prompt and response minus one, layers x experts of a token], one of `DTYPES`."""

    wanted: ExpertsWanted
    rows: NDArray[np.generic]

    def parts(self) -> Iterator[ExpertRows]:
        """As messages, in order."""
        total, width = self.rows.shape
        step = max(1, PART_BYTES // (width * self.rows.itemsize))
        for first in range(0, total, step):
            part = self.rows[first : first + step]
            yield ExpertRows(
                id=self.wanted.id,
                attempt=self.wanted.attempt,
                first=first,
                count=len(part),
                total=total,
                width=width,
                dtype=self.rows.dtype.name,
                rows=part.tobytes(),
            )


def table(raw: bytes, count: int) -> NDArray[np.generic]:
    """`count` rows out of int32 numbers, raw, little-endian, as narrow as they fit. Raises NoRows."""
    if count < 1 or not raw or len(raw) % (4 * count):
        raise NoRows(f"{len(raw)} bytes of experts for {count} rows of int32")
    rows = np.frombuffer(raw, "<i4").reshape(count, -1)
    least, most = int(rows.min()), int(rows.max())
    if least < 0 or most >= 1 << 16:
        return rows
    return rows.astype(np.uint8 if most < 1 << 8 else np.uint16)
