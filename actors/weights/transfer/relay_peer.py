"""`Peer`: one holder or receiver of a version in a relay wave (`relay`).

Owns the state of a peer, and the walks over the trees that parents and children make. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

MAX_AVOIDED = 16  # of a peer; beyond it the oldest is tried again

Avoided = Literal["failed", "weak"]
"""A failed parent is not pulled from again; a weak one is, if there is no other."""

Moving = Literal["", "weak", "starved", "parent"]
"""Why a peer needs another parent: its own gives too little, gets nothing itself, or should not serve (any
longer)."""


@dataclass(slots=True, eq=False)
class Peer:
    """`up_bytes_s`, `down_bytes_s`: measured, or else the card's nominal rate. `site`: links within one are
    fast. `origin`: the publisher. `have_bytes`: verified bytes of the payload, which it can serve. `parent`:
    the peer that it pulls from. `avoided`: peers that it could not pull from, or not fast."""

    name: str
    up_bytes_s: float
    down_bytes_s: float
    site: str
    origin: bool
    have_bytes: int
    complete: bool
    parent: Peer | None = None
    children: dict[str, Peer] = field(default_factory=dict)
    in_slow_slot: bool = False
    moving: Moving = ""
    avoided: dict[str, Avoided] = field(default_factory=dict)
    draining: bool = False
    suspected: bool = False  # a child gave it up, and it has not reported since
    banned: bool = False
    believed: str = ""  # the peer that its accusation has banned: one accuser bans one peer
    heard_s: float = 0.0
    gained_s: float = 0.0  # time of its last report of new chunks, or of its new parent
    mark_s: float = 0.0  # start of the window over which its rate is judged
    mark_bytes: int = 0
    weak_bytes_s: float = 0.0  # bytes/s that it got from a weak parent; 0: no weak parent lately

    @property
    def serves(self) -> bool:
        """Whether it may be given children."""
        return not (self.banned or self.draining or self.suspected)

    @property
    def wants(self) -> bool:
        """Whether it should pull at all: a peer that will leave pulls only for its children."""
        return not self.complete and (not self.draining or bool(self.children))

    def kids(self, slow: bool) -> int:
        """Children in its slots of one kind; a child that is leaving, or seems to be dead, holds none."""
        return sum(child.in_slow_slot == slow for child in self.staying())

    def staying(self) -> list[Peer]:
        """Children that will go on pulling from it."""
        return [child for child in self.children.values() if not (child.draining or child.suspected)]

    def avoid(self, name: str, why: Avoided) -> None:
        """Do not pull from that one."""
        self.avoided.pop(name, None)
        self.avoided[name] = why
        if len(self.avoided) > MAX_AVOIDED:
            del self.avoided[next(iter(self.avoided))]


def below(peer: Peer) -> set[str]:
    """The peer itself and all that pull from it, directly or not."""
    found, ahead = {peer.name}, [peer]
    while ahead:
        for child in ahead.pop().children.values():
            found.add(child.name)
            ahead.append(child)
    return found


def above(peer: Peer) -> Iterator[Peer]:
    """Its parent, and so on."""
    while peer.parent is not None:
        peer = peer.parent
        yield peer


def rooted(peers: Iterable[Peer]) -> set[str]:
    """The peers that bytes reach: complete ones (origins are), and all their descendants."""
    found: set[str] = set()
    for peer in peers:
        if peer.complete:
            found |= below(peer)
    return found
