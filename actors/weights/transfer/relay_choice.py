"""`Choice`: parent selection for a receiver in a relay wave.

Owns slots, ranks and the one copy that crosses between sites. Reads the current peers and changes nothing
(`relay` does). Pure. docs/weights.md has the reasons and the analysis.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gleaner.actors.weights.transfer.relay_peer import Peer, below, rooted

STAR_S = 0.5  # a payload that the origin can give to all in that time is not worth a chain
NEAR = 0.9  # rates are measured: one within that share of the best is as good
SLOW = 0.5  # below that share of its site's median a receiver serves no peer: its descendants would wait
RELAY_SLOTS = 1  # children of a peer that is still pulling: a second one halves its uplink for all below
COMPLETE_SLOTS = 2
MAX_PEERS = 4096  # of a wave; further receivers are refused, and pull from the origin as they always could


@dataclass(frozen=True, slots=True)
class Choice:
    """The rule over `peers`, by name. `crossing`: bytes/s that the link of a site has shown to carry, if less
    than the hosts' cards. `typical`: cached medians of the peers' rates; clear them when a peer joins, leaves
    or changes."""

    peers: Mapping[str, Peer]
    payload_bytes: int
    crossing: Mapping[str, float]
    typical: dict[str, float]

    def parent_for(
        self, peer: Peer, barred: Collection[str] = (), current: str = "", *, least_bytes: int = 0
    ) -> Peer | None:
        """The peer that should serve the receiver, other than its present parent; `current` if that is
        allowed. `least_bytes`: only peers of its site that have so much. None: no peer."""
        reached, own = rooted(self.peers.values()), below(peer)
        usable = [
            one
            for name, one in self.peers.items()
            if name in reached and name not in own and name not in barred
            if one.serves and peer.avoided.get(name) != "failed" and one.have_bytes >= least_bytes
        ]
        pool = [one for one in usable if one.site == peer.site]
        if not pool and not least_bytes and self._may_cross(peer, own):
            pool = usable
        pool = [one for one in pool if one.origin or not self.is_slow(one)] or pool  # only slow ones: those
        origins = [one for one in pool if one.origin and one.site == peer.site]
        if origins and self.is_star():
            pool = origins
        free = [
            one
            for one in pool
            if one is not peer.parent and one.kids(self.is_slow_edge(one, peer)) < self.slots(one)
        ]
        strong = [one for one in free if one.name not in peer.avoided]
        if strong or peer.parent is not None:
            free = strong
        for one in free:
            if one.name == current:
                return one
        slow = [one for one in free if self.is_slow_edge(one, peer)]
        return self._best(peer, [one for one in free if one not in slow]) or _gentlest(slow)

    def slots(self, peer: Peer) -> int:
        """The numbers of slots for fast and for slow children."""
        if not peer.origin:
            return COMPLETE_SLOTS if peer.complete else RELAY_SLOTS
        if self.is_star():
            return MAX_PEERS
        typical = self.typical_down(peer.site)
        return max(1, int(peer.up_bytes_s / typical + 1e-6)) if typical else 1

    def is_star(self) -> bool:
        """Whether the origins can give the rest of the wave to all within `STAR_S`."""
        up = sum(peer.up_bytes_s for peer in self.peers.values() if peer.origin)
        wanting = sum(peer.wants for peer in self.peers.values())
        return self.payload_bytes * wanting <= STAR_S * up

    def typical_down(self, site: str) -> float:
        """Bytes/s of the median receiver, of the site or else of all; 0: there is none."""
        found = self.typical.get(site)
        if found is None:
            receivers = [peer for peer in self.peers.values() if not peer.origin]
            local = [peer.down_bytes_s for peer in receivers if peer.site == site]
            found = median(local or [peer.down_bytes_s for peer in receivers] or [0.0])
            self.typical[site] = found
        return found

    def is_slow(self, peer: Peer) -> bool:
        """Whether it is below `SLOW` among the receivers of its site."""
        return peer.down_bytes_s < SLOW * self.typical_down(peer.site)

    def is_slow_edge(self, parent: Peer, child: Peer) -> bool:
        """Slow children have slots of their own: for long they would keep a fast one from its place."""
        if parent.site == child.site:
            return self.is_slow(child)
        return self.edge_bytes_s(parent, child, 1) < SLOW * self.typical_down(parent.site)

    def edge_bytes_s(self, parent: Peer, child: Peer, children: int) -> float:
        """Bytes/s of a child when `children` share the parent's uplink."""
        arriving = math.inf if parent.complete else parent.down_bytes_s
        rate = min(parent.up_bytes_s / children, child.down_bytes_s, arriving)
        if parent.site == child.site:
            return rate
        return min(rate, self.crossing.get(child.site, math.inf))

    def _best(self, peer: Peer, parents: Sequence[Peer]) -> Peer | None:
        """The peer with the highest rate. Among equally good ones an origin is first, then the one with the
        most bytes, then the earliest member.
        """
        rates = {one.name: self._offered(one, peer) for one in parents}
        good = [one for one in parents if rates[one.name] >= NEAR * max(rates.values())]
        return max(good, key=lambda one: (one.origin, one.have_bytes), default=None)

    def _offered(self, parent: Peer, peer: Peer) -> float:
        """Bytes/s that it would get as one more child."""
        slow = (child for child in parent.staying() if child.in_slow_slot)
        spent = sum(self.edge_bytes_s(parent, child, 1) for child in slow)
        share = (parent.up_bytes_s - spent) / (parent.kids(slow=False) + 1)
        return min(self.edge_bytes_s(parent, peer, 1), share)

    def _may_cross(self, peer: Peer, own: set[str]) -> bool:
        """Whether it may pull across sites, as no peer of its site can serve it now. The receiver with the
        most bytes crosses; then it serves its site.
        """
        return not any(
            one.site == peer.site and one.serves and one.have_bytes > peer.have_bytes
            for name, one in self.peers.items()
            if name not in own and peer.avoided.get(name) != "failed"
        )


def _gentlest(parents: Iterable[Peer]) -> Peer | None:
    """For a slow child: a parent where it delays no chain, and an origin only if there is no other."""
    idle = [one for one in parents if one.origin or one.complete or not one.kids(slow=False)]
    return min(idle, key=lambda one: (one.origin, len(one.children), -one.have_bytes), default=None)
