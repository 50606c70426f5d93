"""Rejections: backoff of redials to processes that did not admit this one.

Pauses grow, and hosts do not redial at the same time. A handshake costs the refusing process as much as an
admitted one, and a key that is not trusted now is seldom trusted a moment later. Pure: the time and the
random draw are arguments.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gleaner.transport.wire import Peer

FIRST_S = 0.2
MOST_S = 15.0
"""A key that was made known meanwhile is admitted within this time."""
MAX_PEERS = 4096


@dataclass(slots=True)
class _Refused:
    pause_s: float
    until_s: float


class Rejections:
    """State of one wire. draw: returns a number from 0 to 1, new for each pause."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self._refused: dict[Peer, _Refused] = {}

    def rejected(self, peer: Peer, now_s: float) -> None:
        """It did not admit us; the pause doubles, and half of it is drawn."""
        known = self._refused.pop(peer, None)
        pause_s = FIRST_S if known is None else min(2 * known.pause_s, MOST_S)
        if len(self._refused) >= MAX_PEERS:
            del self._refused[next(iter(self._refused))]  # the one that was refused longest ago
        self._refused[peer] = _Refused(pause_s, now_s + pause_s * (0.5 + 0.5 * self._draw()))

    def admitted(self, peer: Peer) -> None:
        """It answers."""
        self._refused.pop(peer, None)

    def forget(self) -> None:
        """Our own list of keys has changed: every process may be tried at once."""
        self._refused.clear()

    def holds_back(self, peer: Peer, now_s: float) -> bool:
        """Whether it is not to be dialled yet."""
        known = self._refused.get(peer)
        return known is not None and now_s < known.until_s
