"""Delta-encoded pull of a version: payloads to pull, and the chain when complete.

Pure.
"""

from collections.abc import Sequence

from gleaner.actors.protocol.weights import Offered
from gleaner.actors.weights.delta.cache import DELTA
from gleaner.actors.weights.delta.image_delta import Delta
from gleaner.actors.weights.delta.table import DeltaTable
from gleaner.actors.weights.image.manifest import Manifest
from gleaner.actors.weights.transfer.payload import Payload


class UnusableDelta(Exception):
    """The deltas did not become the version, so the whole image is pulled."""


def tables_of(offered: Offered, manifest: Manifest, source: str) -> tuple[DeltaTable, ...]:
    """The delta tables that `source` offers.

    Raises `UnusableDelta` if it has none, if they exceed the image in size, or if this host would serve one
    of them in place of another delta; `BadDelta` for bytes that are no table."""
    tables = tuple(DeltaTable.decode(link.table) for link in offered.deltas)
    if not tables:
        raise UnusableDelta(f"{source} has no deltas to version {manifest.version} any more")
    if any(link.key != DELTA | table.version for link, table in zip(offered.deltas, tables, strict=True)):
        raise UnusableDelta(f"{source} has deltas under names that are not theirs")
    if len({link.key for link in offered.deltas}) < len(tables):
        raise UnusableDelta(f"{source} has two deltas to one version")
    if sum(table.nbytes for table in tables) > manifest.image_bytes:
        raise UnusableDelta(f"{source} has deltas larger than version {manifest.version} is")
    return tables


def payloads_of(offered: Offered, tables: Sequence[DeltaTable]) -> list[Payload]:
    """Buffers for the chunks to pull of each delta."""
    return [
        Payload(link.key, table.bundles, memoryview(bytearray(table.nbytes)))
        for link, table in zip(offered.deltas, tables, strict=True)
    ]


def chain_of(tables: Sequence[DeltaTable], payloads: Sequence[Payload]) -> list[Delta]:
    """The deltas, when all of their payloads are here."""
    return [
        Delta(table, [one.into[part.offset : part.offset + part.length] for part in table.bundles])
        for table, one in zip(tables, payloads, strict=True)
    ]
