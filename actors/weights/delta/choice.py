"""`Choice` between full image, one delta, and a chain of deltas. Pure.

The number of bytes decides, because applying costs a core a fraction of what any link costs
(docs/weights.md). The cheapest path from the receiver's base is taken, as long as it is clearly smaller than
the image. A delta that is nearly as large must be decoded too, and one in a long chain may be gone when it is
requested.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

DELTA_SHARE = 0.6
"""Share of the image's bytes beyond which a version is pulled in full."""
MOST_LINKS = 16
"""Most links of a chain: each is requested, hashed and decoded by itself."""


@dataclass(frozen=True, slots=True)
class Offer:
    """An available delta: the roots of the manifests at its two ends, and the bytes of its payload."""

    base_root: bytes
    target_root: bytes
    nbytes: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The deltas to apply one after the other, and the bytes to pull."""

    chain: tuple[Offer, ...]
    nbytes: int

    @property
    def way(self) -> Literal["nothing", "full", "delta", "chain"]:
        """`nothing`: the wanted version is already there."""
        if not self.chain:
            return "full" if self.nbytes else "nothing"
        return "delta" if len(self.chain) == 1 else "chain"


def choose(
    full_bytes: int,
    base_root: bytes | None,
    target_root: bytes,
    offers: Sequence[Offer],
    *,
    share: float = DELTA_SHARE,
    most_links: int = MOST_LINKS,
) -> Choice:
    """The way with the fewest bytes, and of those the one with the fewest links.

    `base_root`: of the verified version at the receiver; None for none. `share`: the largest share of
    `full_bytes` for a delta or a chain. The answer depends on the offers, not on their order.
    """
    if base_root == target_root:
        return Choice((), 0)
    full = Choice((), full_bytes)
    if base_root is None:
        return full
    listed = sorted(offers, key=lambda offer: (offer.nbytes, offer.base_root, offer.target_root))
    best: Choice | None = None
    reached = {base_root: Choice((), 0)}  # with exactly so many links
    for _ in range(most_links):
        further: dict[bytes, Choice] = {}
        for offer in listed:
            before = reached.get(offer.base_root)
            if before is None:
                continue
            way = Choice((*before.chain, offer), before.nbytes + offer.nbytes)
            known = further.get(offer.target_root)
            if way.nbytes <= share * full_bytes and (known is None or way.nbytes < known.nbytes):
                further[offer.target_root] = way
        reached = further
        found = reached.get(target_root)
        if found is not None and (best is None or found.nbytes < best.nbytes):
            best = found
    return best if best is not None else full
