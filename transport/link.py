"""The state of one dialled link, shared by every carrier.

Owns the order of `Link` events, the bounded hold before the peer answers, and the two deadlines (answer and
grace). Does not own the connection: the carrier reports `up`, `lost`, `no_listener` and `rejected`, and
gives `transmit`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from gleaner.transport.wire import (
    CONNECT_DEADLINE_S,
    GRACE_S,
    HELD_FRAMES,
    STOOD_STILL_S,
    Link,
    OnLink,
    Peer,
    Sent,
)

FLUSH_RETRY_S = 0.01  # an up link that takes nothing is tried again after this time


class DialledLink:
    """UP, SUSPECT and the end (DOWN, REJECTED) of one peer. `transmit` returns False when the carrier takes
    nothing right now; `on_down` releases the carrier's resources before the end is reported."""

    def __init__(
        self,
        peer: Peer,
        transmit: Callable[[Sequence[bytes]], bool],
        on_link: OnLink,
        on_down: Callable[[], None],
        *,
        grace_s: float = GRACE_S,
        connect_deadline_s: float = CONNECT_DEADLINE_S,
    ) -> None:
        self.peer = peer
        self.state: Link | None = None  # None: dialled, never answered
        self._transmit = transmit
        self._on_link = on_link
        self._on_down = on_down
        self._grace_s = grace_s
        self._held: deque[Sequence[bytes]] = deque()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._give_up_in(connect_deadline_s)

    @property
    def held(self) -> int:
        """Messages waiting for the peer's answer."""
        return len(self._held)

    def send(self, frames: Sequence[bytes]) -> Sent:
        """Transmit, or hold while the link is not up. Order is kept: no message overtakes held ones."""
        if self.state is Link.UP and not self._held:
            return Sent.OK if self._transmit(frames) else Sent.NO_CREDIT
        if len(self._held) >= HELD_FRAMES:
            return Sent.NO_CREDIT
        self._held.append(frames)
        return Sent.OK

    def up(self) -> None:
        """The peer answered."""
        if self._closed or self.state is Link.UP:
            return
        self._cancel_timer()
        self.state = Link.UP
        self._on_link(self.peer, Link.UP)
        self.flush()

    def flush(self) -> None:
        """Transmit the held messages, as far as the carrier takes them."""
        while self._held and self.state is Link.UP and not self._closed:
            if not self._transmit(self._held[0]):
                if self._retry is None:
                    self._retry = self._loop.call_later(FLUSH_RETRY_S, self._flush_again)
                return
            self._held.popleft()

    def lost(self) -> None:
        """The connection broke. Only a link that was up becomes suspect."""
        if self._closed or self.state is not Link.UP:
            return
        self.state = Link.SUSPECT
        self._give_up_in(self._grace_s)
        self._on_link(self.peer, Link.SUSPECT)

    def no_listener(self) -> None:
        """The connection broke and no process listens at the other end any longer: waiting is useless."""
        if not self._closed and self.state is Link.SUSPECT:
            self._down()

    def rejected(self) -> None:
        """The peer answered and will not have us: no use in waiting."""
        if not self._closed:
            self._down(Link.REJECTED)

    def close(self) -> None:
        """Forget the link: timers off, held messages dropped, no event."""
        self._closed = True
        self._cancel_timer()
        if self._retry is not None:
            self._retry.cancel()
        self._held.clear()

    def _give_up_in(self, seconds: float) -> None:
        due_s = self._loop.time() + seconds
        self._timer = self._loop.call_at(due_s, self._late, due_s, seconds)

    def _late(self, due_s: float, seconds: float) -> None:
        """The peer did not answer in time. If this process was stalled meanwhile, the answer may still be
        unread."""
        if self._loop.time() - due_s < STOOD_STILL_S:
            self._down()
        else:
            self._give_up_in(seconds)

    def _flush_again(self) -> None:
        self._retry = None
        self.flush()

    def _down(self, end: Link = Link.DOWN) -> None:
        self.close()
        self.state = end
        self._on_down()
        self._on_link(self.peer, end)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
