"""`OutboundFrames`: the frames of an actor system to other processes.

Owns the peers that were sent to, which of them are gone, and the trace that a message belongs to. Sends
nothing (`outbound` does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gleaner.supervisor.address import Address
from gleaner.supervisor.cell import IN_HAND, Cell
from gleaner.supervisor.message import Message, encode_body, kind_of
from gleaner.supervisor.system_messages import SYSTEM
from gleaner.transport.envelope import Lane, Mode, encode
from gleaner.transport.wire import Peer

if TYPE_CHECKING:
    from gleaner.supervisor.system import ActorSystem

MAX_PEERS_CACHED = 4096


def name_of(source: Cell | None) -> str:
    """Name of the sender: an actor, or the system itself."""
    return source.address.name if source is not None else SYSTEM


class OutboundFrames:
    """See the module; one an actor system."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._peers: dict[str, Peer] = {}
        self._gone: set[Peer] = set()

    def lose(self, peer: Peer) -> None:
        """The last link to this process ended: no message waits for it."""
        if len(self._gone) >= MAX_PEERS_CACHED:
            self._gone.clear()
        self._gone.add(peer)

    def found(self, peer: Peer) -> None:
        """This process answers (again)."""
        self._gone.discard(peer)

    def gone(self, peer: Peer | None) -> bool:
        """Whether the last link to this process ended."""
        return peer in self._gone

    def peer(self, to: Address) -> Peer:
        """The process of this address."""
        peer = self._peers.get(to.endpoint)
        if peer is None or peer.public_key != to.public_key:
            if len(self._peers) >= MAX_PEERS_CACHED:
                self._peers.clear()
            peer = self._peers[to.endpoint] = to.peer
        return peer

    def trace(self, source: Cell | None) -> str:
        """The trace of the message that `source` handles: messages that it sends meanwhile belong to that
        trace."""
        if source is not None and source.trace and IN_HAND.get() is source:
            return source.trace
        return ""

    def trace_of_tell(self, source: Cell | None, to: Address, message: Message) -> str:
        """The trace of a message that has no answer."""
        trace = self.trace(source)
        tracer = self._system.tracer
        return trace if tracer is None else tracer.tell(name_of(source), to.name, message, trace)

    def packed(
        self,
        to: Address,
        message: Message,
        mode: Mode,
        source: Cell | None,
        trace: str,
        corr: int = 0,
        key: str = "",
        left_ms: int = 0,
    ) -> bytes:
        """The envelope of a message to an actor of another process."""
        return encode(
            kind_of(message),
            to.name,
            encode_body(message),
            Lane.USER,
            mode,
            name_of(source),
            source.address.incarnation if source is not None else 0,
            to.incarnation,
            corr,
            key,
            left_ms,
            trace,
        )
