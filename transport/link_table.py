"""LinkTable: the ends of all control links of a process, by address or route.

Owns the table, the lives of the ends, and the messages lost when ends close (`lost`). A dialled end has two
keys: its peer and, from the first answer on, the route of that answer.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

from gleaner.transport.link_end import LinkEnd, LinkLimits
from gleaner.transport.wire import Link, Peer, Route, Sent, Wire

LIFE_BITS = 20  # ends that one life of a process may open; the bits above them are the life's

OnLink = Callable[[Peer, Link], None]


class LinkTable:
    """See the module. `Links` sets `on_link`."""

    def __init__(self, wire: Wire, life: int, limits: LinkLimits) -> None:
        if not 0 < life < 1 << (63 - LIFE_BITS):
            raise ValueError(f"life {life}: 1 to 2^{63 - LIFE_BITS} - 1 is needed")
        self.wire = wire
        self.limits = limits
        self.ends: dict[Peer | Route, LinkEnd] = {}
        self._once: dict[Peer | Route, LinkEnd] = {}  # each end once, by the key under which it was opened
        self.lost: Counter[str] = Counter()  # messages that an ended link dropped, by reason
        self.ended: Counter[str] = Counter()  # what ended links had counted, by `link_end.COUNTED`
        self.diallers = 0  # ends that others dialled
        self.on_link: OnLink = _ignore
        self._next_life = life << LIFE_BITS
        self._loop = asyncio.get_running_loop()

    def each(self) -> list[LinkEnd]:
        """Every end once."""
        return list(self._once.values())

    def of(self, route: Route) -> LinkEnd | None:
        """The end of the frames of this route."""
        end = self.ends.get(route)
        if end is None and (peer := self.wire.peer_of(route)) is not None:
            end = self.ends.get(peer)
            if end is not None:  # its first answer: from now on it is found by its route
                end.route = route
                self.ends[route] = end
        return end

    def open(self, to: Peer | Route) -> LinkEnd:
        """A new end with a life of its own."""
        self._next_life += 1
        end = LinkEnd(to, self.wire.send, self._next_life, self.limits, self._loop.time())
        self.ends[to] = self._once[to] = end
        self.diallers += end.peer is None
        return end

    def dial(self, peer: Peer) -> LinkEnd | None:
        """A new end that sends HELLO; None when the wire finds no way there."""
        end = self.open(peer)
        if end.greet(self._loop.time()) is Sent.OK:
            end.hello_held = True
            return end
        self.remove(end, "cannot dial")
        return None

    def anew(self, end: LinkEnd, reason: str) -> None:
        """Replace a dialled end: the other process has dropped its session, or is another process. A new
        session on the same connection finds out which. Messages that the old session may not have delivered
        are counted."""
        peer, process = end.peer, end.peer_life >> LIFE_BITS
        assert peer is not None
        state = end.state
        self._forget(end, reason)
        new = self.open(peer)
        new.process, new.connected, new.state = process, True, Link.SUSPECT
        if state is Link.UP:
            self.on_link(peer, Link.SUSPECT)
        if self.ends.get(peer) is new:
            new.greet(self._loop.time())

    def remove(self, end: LinkEnd, reason: str) -> None:
        """Forget an end without an event; messages that it may not have delivered are counted."""
        if self._forget(end, reason) and end.peer is not None:
            self.wire.forget(end.peer)

    def _forget(self, end: LinkEnd, reason: str) -> bool:
        if self.ends.pop(end.to, None) is None:
            return False
        del self._once[end.to]
        self.ends.pop(end.route, None)
        self.diallers -= end.peer is None
        self.ended.update(end.counts())
        if dropped := end.release():
            self.lost[reason] += dropped
        return True

    def over(self, end: LinkEnd, link: Link, reason: str) -> None:
        """Remove the end, and notify the layer above if this process had dialled."""
        self.remove(end, reason)
        if end.peer is not None:
            self.on_link(end.peer, link)


def _ignore(_peer: Peer, _link: Link) -> None:
    return None
