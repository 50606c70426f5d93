"""Wire: the port between the actor runtime and the carrier of its bytes.

Owns the types (`Peer`, `Route`, `Sent`, `Link`) and the contract (`Wire`) that every carrier keeps: ZeroMQ
(`mesh.ZmqWire`), one process (`loopback.LoopbackWire`), a simulated network. Knows no actor, no envelope and
no socket.

What every `Wire` promises:
- `send` never blocks and never awaits: it takes the frames, or returns NO_CREDIT or NO_ROUTE and takes none.
- Delivery is at most once, in order for each pair of sender and receiver.
- A peer's first send dials it. Frames are held (at most `HELD_FRAMES` messages) until it answers.
- Every dialled connection has routes of its own: its replies never bear the route of an earlier one.
- Link events of a dialled peer: UP, then SUSPECT when the connection breaks, then UP again or DOWN (at once
  when no process listens there any longer, else after `GRACE_S`). A peer that never answers goes DOWN after
  `connect_deadline_s`; one that does not admit us is REJECTED at once. Both forget the peer and drop the
  frames held for it; the next send dials anew.
- Callbacks run on the loop, one at a time. An exception of `on_frames` never silences the wire; a
  `FrameError` raised by it is counted in `refused`.
"""

import enum
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gleaner.transport.refusal import Oversize

MAX_FRAME_BYTES = 16 << 20  # one frame on a control link; weights and other bulk have wires of their own
HELD_FRAMES = 64  # messages held for a peer that has not answered yet
STOOD_STILL_S = 0.5
"""A timer that fires so late shows that this process was stalled, with messages of its peers unread
meanwhile."""
GRACE_S = 0.3  # a broken connection may be restored within this time; later the peer is DOWN
CONNECT_DEADLINE_S = 5.0  # a dialled peer answers within this time or is DOWN


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """How long a link may be broken before its peer is DOWN, and how long it may take to connect."""

    grace_s: float = GRACE_S
    connect_deadline_s: float = CONNECT_DEADLINE_S


LINK_TIMES = LinkTimes()

Route = bytes
"""Opaque way back to the sender of a frame; valid while that connection lives."""


class Peer(NamedTuple):
    """Address of a process: `endpoint` such as "tcp://127.0.0.1:7700", and the z85 CURVE key of its node (""
    means plain). A tuple, because it is looked up for every message and hashes five times faster."""

    endpoint: str
    public_key: str = ""


class Sent(enum.Enum):
    """Result of a send."""

    OK = "ok"  # taken
    NO_CREDIT = "no-credit"  # the peer or the link is behind; nothing taken, try later
    NO_ROUTE = "no-route"  # the route's peer is gone; nothing taken


class Link(enum.Enum):
    """State of the connection to a dialled peer."""

    UP = "up"
    SUSPECT = "suspect"
    DOWN = "down"
    REJECTED = "rejected"  # it answered and does not admit us; an end as DOWN is


OnFrames = Callable[[Route, list[bytes]], None]
OnLink = Callable[[Peer, Link], None]


class Wire(Protocol):
    """Carries lists of frames between processes. See the module's docstring for the promises."""

    @property
    def local(self) -> Peer:
        """Address of this process for others."""

    @property
    def refused(self) -> Counter[str]:
        """Refused input by reason, since the start."""

    def send(self, to: Peer | Route, frames: Sequence[bytes]) -> Sent:
        """Hand one message over. Raises `Oversize` (a frame above `MAX_FRAME_BYTES`) or
        ValueError (no frame)."""

    def listen(self, on_frames: OnFrames, on_link: OnLink) -> None:
        """Begin to deliver. Called once, on the running loop."""

    def peer_of(self, route: Route) -> Peer | None:
        """The dialled peer whose frames bear this route; None when a process that dialled us sent them."""

    def refuse(self, route: Route, reason: str, detail: str) -> None:
        """Count input that the layer above found unbelievable; logged once for each peer and reason."""

    def forget(self, peer: Peer) -> None:
        """Drop the link to a dialled peer and what is held for it, without an event. No error if unknown."""

    async def close(self) -> None:
        """Stop delivering and release everything. A second call does nothing."""


def check_frames(frames: Sequence[bytes]) -> None:
    """Refuse to send what no receiver would take. Raises ValueError or `Oversize`."""
    if not frames:
        raise ValueError("a message needs at least one frame")
    for frame in frames:
        if len(frame) > MAX_FRAME_BYTES:
            raise Oversize(f"frame of {len(frame)} bytes, the limit of a control link is {MAX_FRAME_BYTES}")
