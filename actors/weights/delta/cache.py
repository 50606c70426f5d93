"""`KeptDeltas`: the deltas of a host, in memory, for any receiver.

The host made them from versions that it published, or pulled and applied them. They are kept within a bound
of bytes. The oldest is evicted first, and a receiver that would have needed it pulls the whole image. Pure:
the owner of this object notifies the bulk server that serves the deltas.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gleaner.actors.protocol.weights import Holds
from gleaner.actors.weights.delta.choice import Offer, choose
from gleaner.actors.weights.delta.table import DeltaTable
from gleaner.transport.bulk_frames import Chunk

DELTA = 1 << 62
"""Added to a version, it gives the key of the payload of the delta to that version; images have the version
as key.
"""


@dataclass(frozen=True, slots=True)
class KeptDelta:
    """`payload`: its bundles, one after the other. `part`: those that are in it; None: all."""

    table: DeltaTable
    payload: memoryview
    part: tuple[Chunk, ...] | None = None

    @property
    def key(self) -> int:
        """The key under which its payload is served."""
        return DELTA | self.table.version

    @property
    def nbytes(self) -> int:
        """Bytes of the payload in memory."""
        return len(self.payload) if self.part is None else sum(bundle.length for bundle in self.part)

    @property
    def offer(self) -> Offer:
        """The delta as an `Offer` for the choice."""
        return Offer(self.table.base_root, self.table.target_root, max(1, self.table.nbytes))


class KeptDeltas:
    """See the module. `most_bytes`: of payloads, together."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: dict[int, KeptDelta] = {}  # by the version that it leads to; the oldest first

    def keep(self, made: KeptDelta) -> tuple[bool, list[int]]:
        """Keep a delta if it fits at all, replacing another one to the same version. Returns the keys of the
        evicted ones."""
        replaced = self._kept.pop(made.table.version, None)
        gone = [replaced.key] if replaced is not None else []
        if made.nbytes > self._most_bytes:
            return False, gone
        self._kept[made.table.version] = made
        while self.nbytes > self._most_bytes:
            gone.append(self._kept.pop(next(iter(self._kept))).key)
        return True, gone

    def to(self, version: int) -> KeptDelta | None:
        """The delta that leads to a version, if it is kept."""
        return self._kept.get(version)

    @property
    def nbytes(self) -> int:
        """Bytes of all payloads."""
        return sum(one.nbytes for one in self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)

    def way(self, holds: Sequence[Holds], root: bytes, image_bytes: int) -> tuple[int, tuple[KeptDelta, ...]]:
        """The cheapest way from any of `holds` to the version with `root`: the base's version and the deltas,
        or -1 and none if the whole image is the better way."""
        offers = [one.offer for one in self._kept.values()]
        ways = [
            (choice.nbytes, base.version, choice.chain)
            for base in holds
            if (choice := choose(image_bytes, base.root, root, offers)).way in ("delta", "chain")
        ]
        if not ways:
            return -1, ()
        _, base_version, chain = min(ways, key=lambda way: way[:2])
        links = {one.table.target_root: one for one in self._kept.values()}
        return base_version, tuple(links[offer.target_root] for offer in chain)

    def chain(self, base: int, root: bytes) -> tuple[KeptDelta, ...]:
        """The deltas from a version to the one with `root`, in their order; none if one is missing."""
        links = {one.table.target_root: one for one in self._kept.values()}
        found: list[KeptDelta] = []
        while (one := links.get(root)) is not None and len(found) < len(links):
            found.insert(0, one)
            if one.table.base_version == base:
                return tuple(found)
            root = one.table.base_root
        return ()
