"""`Wave`: source assignment for the receivers of one weight version (relay).

Chains of receivers grow from the publisher. Owns the state of one version's spreading, the wave. Pure: the
tracker of the holders reports events to the wave, requests parents from it, and passes them on;
`relay_choice` chooses. Each receiver sends its own requests, so a late joiner, a resumed pull and an orphan
are one case (after Hoplite, SIGCOMM 2021, whose receivers pull from partial copies). docs/weights.md has the
analysis.

A receiver keeps its parent until the version is whole, or the parent dies, sends wrong bytes, leaves or gives
less than half of what it could. There are no cycles: no peer pulls from its own descendant.
"""

from __future__ import annotations

from collections.abc import Collection

from gleaner.actors.weights.transfer.relay_choice import MAX_PEERS, Choice
from gleaner.actors.weights.transfer.relay_peer import Peer, above

WEAK = 0.5  # a parent that gives less than that share of what it could ...
WEAK_S = 1.0  # ... during that time is weak,
WEAK_CHUNKS = 4  # unless fewer chunks than that could have arrived
SILENT_S = 0.4  # a parent that gives nothing for so long, though it has more, is left at once
UNHEARD_S = 0.75  # a parent that has not reported its chunks for so long meanwhile may have more, or be dead


class TooManyPeers(RuntimeError):
    """The wave has as many peers as it may."""


class NotInWave(LookupError):
    """No peer of that name is in the wave: let it join (again)."""


class Wave:
    """The spreading of one version.

    Args:
        payload_bytes: what each receiver needs of it.
        chunk_bytes: progress is reported in steps of that size.
    """

    def __init__(self, payload_bytes: int, *, chunk_bytes: int) -> None:
        if payload_bytes < 1 or chunk_bytes < 1:
            raise ValueError(f"{payload_bytes} bytes in chunks of {chunk_bytes} cannot be spread")
        self.payload_bytes = payload_bytes
        self._chunk_bytes = chunk_bytes
        self._peers: dict[str, Peer] = {}
        self._crossing: dict[str, float] = {}
        self._choice = Choice(self._peers, payload_bytes, self._crossing, {})
        self._liars: set[str] = set()

    def join(
        self,
        name: str,
        *,
        up_bytes_s: float,
        down_bytes_s: float,
        site: str = "",
        origin: bool = False,
        have_bytes: int = 0,
    ) -> None:
        """Add a holder, or a receiver before its first request.

        A known peer begins a new life: its children get another parent. Raises TooManyPeers; ValueError for
        impossible figures."""
        if not (up_bytes_s > 0 and down_bytes_s > 0):
            raise ValueError(f"{name} cannot carry {up_bytes_s} bytes/s up and {down_bytes_s} down")
        have = self.payload_bytes if origin else self._held(name, have_bytes)
        self.lose(name)
        if len(self._peers) >= MAX_PEERS:
            raise TooManyPeers(f"{name} is one more than {MAX_PEERS} in a wave: let it pull from the origin")
        peer = Peer(name, up_bytes_s, down_bytes_s, site, origin, have, have == self.payload_bytes)
        peer.banned = name in self._liars
        if not peer.banned:
            for other in self._peers.values():
                other.avoided.pop(name, None)
        self._peers[name] = peer
        self._choice.typical.clear()

    def ask(self, name: str, now_s: float, *, exclude: Collection[str] = (), current: str = "") -> str | None:
        """The parent that `name` should pull from; repeated calls give the same.

        None: `name` is complete or will leave, or no peer can serve it now. It asks again soon, as every peer
        does while it pulls. Raises NotInWave.

        Args:
            name: the requester.
            now_s: of any clock that does not run backward.
            exclude: peers that it could not pull from. They are not given to it again; origins only now not.
                The excluded parent gets no child, and its slot is free, until its next report.
            current: the parent that it has had since before this wave existed: it stays there, if there is a
                slot.
        """
        peer = self._touch(name, now_s)
        for other in exclude:
            known = self._peers.get(other)
            if known is not None and not known.origin:
                peer.avoid(other, "failed")
        if peer.parent is not None and peer.parent.name in exclude:
            peer.parent.suspected = not peer.parent.origin
            self._detach(peer)
        if not peer.wants:
            self._detach(peer)
        elif peer.parent is None or peer.moving:
            self._place(peer, now_s, exclude, current)
        return None if peer.parent is None else peer.parent.name

    def progress(self, name: str, have_bytes: int, now_s: float) -> None:
        """`name` holds so many verified bytes. Raises NotInWave; ValueError for more than there are."""
        peer = self._touch(name, now_s)
        if peer.origin:
            return
        if self._held(name, have_bytes) > peer.have_bytes:
            peer.gained_s = now_s
            if peer.moving == "starved":
                peer.moving = ""
        peer.have_bytes = have_bytes
        peer.complete = peer.have_bytes == self.payload_bytes
        if peer.complete:
            self._detach(peer)
        elif peer.parent is not None:
            self._judge_silence(peer, peer.parent, now_s)
            if now_s - peer.mark_s >= WEAK_S:
                self._judge(peer, peer.parent, now_s)

    def lose(self, name: str) -> None:
        """`name` died or left. Its children get another parent and keep their chunks."""
        peer = self._peers.pop(name, None)
        if peer is None:
            return
        self._choice.typical.clear()
        self._detach(peer)
        for child in list(peer.children.values()):
            self._detach(child)

    def lied(self, liar: str, accuser: str) -> None:
        """`accuser` got bytes from `liar` that do not match their digest.

        The liar serves no peer any more, and may go on receiving. An accuser is believed once: one with bad
        memory would accuse all. An origin is left, never banned, because its published bytes are the
        reference for all. Raises NotInWave."""
        peer, other = self._peer(accuser), self._peers.get(liar)
        if peer.parent is not None and peer.parent is other:
            self._detach(peer)
        if other is None or other.origin:
            return
        peer.avoid(liar, "failed")
        if peer.believed in ("", liar) and len(self._liars) < MAX_PEERS:
            peer.believed = liar
            self._liars.add(liar)
            other.banned = True
            for child in list(other.children.values()):
                self._detach(child)

    def drain(self, name: str) -> None:
        """`name` will leave. It gets no child any more; its children move as soon as there are slots, and
        then it stops pulling. If it stays after all, it joins again. Raises NotInWave."""
        peer = self._peer(name)
        peer.draining = True
        self._move_children(peer)

    def parent_of(self, name: str) -> str | None:
        """The parent that `name` pulls from now. Raises NotInWave."""
        parent = self._peer(name).parent
        return None if parent is None else parent.name

    def slots(self, name: str) -> int:
        """The numbers of slots for fast and for slow children. Raises NotInWave."""
        return self._choice.slots(self._peer(name))

    def peers(self) -> tuple[Peer, ...]:
        """All, in the order in which they joined; to be read, not changed."""
        return tuple(self._peers.values())

    def _place(self, peer: Peer, now_s: float, barred: Collection[str], current: str) -> None:
        """Give it a parent, or a better one, if there is any; otherwise it keeps the one it has."""
        least = peer.have_bytes + WEAK_CHUNKS * self._chunk_bytes if peer.moving == "starved" else 0
        found = self._choice.parent_for(peer, barred, current, least_bytes=least)
        if found is None:
            return
        self._detach(peer)
        peer.parent = found
        peer.in_slow_slot = self._choice.is_slow_edge(found, peer)
        peer.gained_s = peer.mark_s = now_s
        peer.mark_bytes = peer.have_bytes
        found.children[peer.name] = peer

    def _detach(self, peer: Peer) -> None:
        if peer.parent is not None:
            peer.parent.children.pop(peer.name, None)
        peer.parent, peer.moving = None, ""

    def _judge(self, peer: Peer, parent: Peer, now_s: float) -> None:
        """Judge the parent over a window: did it give half of what it could give and had for this peer?

        If the parent has nothing new, the parent's own parent is judged. The second weak parent in a row
        shows that the weakness is the peer's own, or that of the link to its site."""
        took_s, got = now_s - peer.mark_s, peer.have_bytes - peer.mark_bytes
        rate_bytes = self._choice.edge_bytes_s(parent, peer, len(parent.children)) * took_s
        could = min(rate_bytes, parent.have_bytes - peer.mark_bytes)
        if rate_bytes < WEAK_CHUNKS * self._chunk_bytes:
            return  # the window grows
        peer.mark_s, peer.mark_bytes = now_s, peer.have_bytes
        if got < WEAK * could:
            self._is_weak(peer, parent, max(got, self._chunk_bytes) / took_s)
        elif could >= WEAK * rate_bytes:  # the parent was tested
            peer.weak_bytes_s = 0.0
            if peer.moving == "weak":
                peer.moving = ""

    def _judge_silence(self, peer: Peer, parent: Peer, now_s: float) -> None:
        """Move a receiver that gets nothing before its window ends, if its parent has more for it.

        A parent that does not report either seems to be dead: its slot is free until its next report. If the
        parent starves too, the nearest silent ancestor is blamed, and the receiver moves to the peer with the
        most chunks."""
        took_s = now_s - peer.gained_s
        rate_bytes = self._choice.edge_bytes_s(parent, peer, len(parent.children)) * took_s
        if took_s < SILENT_S or rate_bytes < WEAK_CHUNKS * self._chunk_bytes:
            return
        unheard = not parent.complete and now_s - parent.heard_s >= UNHEARD_S
        if unheard or parent.have_bytes > peer.have_bytes:
            parent.suspected = parent.suspected or unheard
            self._is_weak(peer, parent, self._chunk_bytes / took_s)
            return
        for one in above(parent):
            one.suspected = one.suspected or (not one.complete and now_s - one.heard_s >= UNHEARD_S)
        peer.moving = peer.moving or "starved"

    def _is_weak(self, peer: Peer, parent: Peer, bytes_s: float) -> None:
        if peer.weak_bytes_s and not peer.moving and not parent.suspected:
            self._learn(peer, parent, max(bytes_s, peer.weak_bytes_s))
            return
        if not parent.suspected:
            peer.weak_bytes_s = bytes_s
        peer.moving = peer.moving or "weak"
        if not parent.origin:
            peer.avoid(parent.name, "weak")

    def _learn(self, peer: Peer, parent: Peer, bytes_s: float) -> None:
        peer.weak_bytes_s = 0.0
        if parent.site != peer.site:
            self._crossing[peer.site] = bytes_s
            return
        peer.down_bytes_s = bytes_s
        self._choice.typical.clear()
        if self._choice.is_slow(peer):  # it should be a leaf
            self._move_children(peer)

    def _move_children(self, peer: Peer) -> None:
        for child in peer.children.values():
            child.moving = "parent"

    def _held(self, name: str, have_bytes: int) -> int:
        if not 0 <= have_bytes <= self.payload_bytes:
            raise ValueError(f"{name} cannot hold {have_bytes} of {self.payload_bytes} bytes")
        return have_bytes

    def _touch(self, name: str, now_s: float) -> Peer:
        peer = self._peer(name)
        peer.suspected, peer.heard_s = False, now_s
        return peer

    def _peer(self, name: str) -> Peer:
        peer = self._peers.get(name)
        if peer is None:
            raise NotInWave(f"{name} is not in the wave: let it join")
        return peer
