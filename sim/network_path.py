"""Path: one direction between two simulated hosts, with delays and blocking.

Owns times and rates. `network_pipe` has the order inside a connection, and the messages lost with one.
"""

from __future__ import annotations

import asyncio
import enum
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

CONTENT_BYTES = 1024  # a piece of a connection of at least this length is content, not a request
RESEND_CAP = 4  # in a row: three seconds, after which heartbeats would break the connection


@dataclass(frozen=True, slots=True)
class Profile:
    """What happens to traffic in one direction.

    Args:
        latency_s: the shortest time that a message takes.
        jitter_s: up to so much more, drawn anew for each message: so messages of different connections
            overtake each other, those of one never do.
        loss: share of the messages of which TCP has to send a packet again. They arrive late, with all behind
            them: TCP loses nothing while a connection is open.
        resend_s: the first such delay; each further one is twice as long (TCP's RTO: 200 ms on Linux).
        rate_bytes_s: what the line carries.
        vanish, double: shares of the messages of control links and token streams that never arrive, or arrive
            twice, although the connection is open. ZeroMQ does neither; what is built on it must bear both.
    """

    latency_s: float = 0.0002
    jitter_s: float = 0.0001
    loss: float = 0.0
    resend_s: float = 0.2
    rate_bytes_s: float = math.inf
    vanish: float = 0.0
    double: float = 0.0

    def __post_init__(self) -> None:
        if min(self.latency_s, self.jitter_s, self.resend_s) < 0 or self.rate_bytes_s <= 0:
            raise ValueError(f"{self}: times are 0 and more, a rate is more than 0")
        if not all(0 <= share <= 1 for share in (self.loss, self.vanish, self.double)):
            raise ValueError(f"{self}: a share is between 0 and 1")


WITHIN_HOST = Profile(latency_s=0.00003, jitter_s=0.00002)
"""Between processes of one host: measured round trips of loopback TCP are 60 to 120 us."""


class Lane:
    """Something that carries one thing after the other: a line, a network card. Rate in bytes a second."""

    __slots__ = ("free_at_s", "rate_bytes_s")

    def __init__(self, rate_bytes_s: float = math.inf) -> None:
        self.rate_bytes_s = rate_bytes_s
        self.free_at_s = 0.0

    def take(self, now_s: float, size_bytes: float) -> float:
        """Carry that behind what waits: when the last byte has passed."""
        self.free_at_s = max(now_s, self.free_at_s) + size_bytes / self.rate_bytes_s
        return self.free_at_s

    def give_back(self, now_s: float, size_bytes: float) -> None:
        """So much of what waits is not carried after all."""
        self.free_at_s = max(min(now_s, self.free_at_s), self.free_at_s - size_bytes / self.rate_bytes_s)

    def change_rate(self, now_s: float, rate_bytes_s: float) -> None:
        """Carry the rest of what waits, and all that follows, at this rate."""
        if self.free_at_s > now_s:
            self.free_at_s = now_s + (self.free_at_s - now_s) * self.rate_bytes_s / rate_bytes_s
        self.rate_bytes_s = rate_bytes_s


class End(enum.Enum):
    """Kind of end of one direction of a connection, for its receiver."""

    CLOSED = "closed"  # behind everything that was sent
    RESET = "reset"  # messages under way are lost
    REFUSED = "refused"  # a reset too, behind everything that was sent: the rest was not read
    SILENT = "silent"  # nothing was received for too long


class Flow(Protocol):
    """One direction of a connection, as far as its path and its sender act on it (`network_pipe.Pipe`)."""

    def hold_up(self) -> None:
        """The path is blocked: messages under way arrive when it is free again."""

    def go_on(self, blocked_s: float) -> None:
        """The path is free again after `blocked_s`."""

    def watch(self) -> None:
        """Something changed at the sender or on the path: check whether anything still arrives from there."""

    def end(self, how: End) -> None:
        """The sender is done."""


class Listener(Protocol):
    """The listener at a port of a host."""

    @property
    def station(self) -> Station:
        """Its process."""


class Host:
    """A machine on the network: its address, its ports, its network card."""

    def __init__(self, name: str, address: str, first_port: int, egress: float, ingress: float) -> None:
        self.name = name
        self.address = address
        self.up = True
        self.listeners: dict[int, Listener] = {}
        self.egress = Lane(egress)
        self.ingress = Lane(ingress)
        self._next_port = first_port
        self._spoils: deque[Callable[[], None]] = deque()

    def take_port(self, wanted: int, listener: Listener) -> int | None:
        """Give a port away, any free one for 0: its number, None when it is taken."""
        if wanted == 0:
            while self._next_port in self.listeners:
                self._next_port += 1
            wanted = self._next_port
            self._next_port += 1  # not used again soon: a dead process must not be mistaken for its successor
        elif wanted in self.listeners:
            return None
        self.listeners[wanted] = listener
        return wanted

    def spoil(self, count: int, done: Callable[[], None]) -> None:
        """Flip a bit in each of the next `count` pieces of content that arrive; `done` is called for each."""
        self._spoils.extend([done] * count)

    def arrives(self, piece: bytes) -> bytes:
        """The piece as it is delivered."""
        if not self._spoils or len(piece) < CONTENT_BYTES:
            return piece
        self._spoils.popleft()()
        return bytes((piece[0] ^ 1,)) + piece[1:]


class Socket(Protocol):
    """An open socket of a process."""

    def died(self) -> None:
        """Its process was killed. None of its callbacks may be called any more."""

    def outs(self) -> list[Flow]:
        """The directions in which it sends."""


class Station:
    """A process on the network: its loop, its host and its open sockets."""

    def __init__(self, process: asyncio.AbstractEventLoop, host: Host, name: str) -> None:
        self.process = process
        self.host = host
        self.name = name
        self.alive = True
        self.frozen = False
        self.sockets: dict[Socket, None] = {}  # the oldest first


class Path:
    """Made by `network.SimNet` for each two connected hosts, and each direction."""

    def __init__(self, source: Host, target: Host, profile: Profile, rng: random.Random) -> None:
        self.source = source
        self.target = target
        self.profile = profile
        self.rng = rng
        self.cut = False
        self.jammed = False
        self.blocked = not (source.up and target.up)  # by a cut, or a host that is down
        self.blocked_since_s = 0.0
        self.flows: dict[Flow, None] = {}  # of the open connections, the oldest first
        self._messages = Lane(profile.rate_bytes_s)
        self._bulk = Lane(profile.rate_bytes_s)

    def shape(self, now_s: float, profile: Profile) -> None:
        """Treat everything that is sent from now on like this. What was sent before arrives as it would have
        arrived, but what follows waits no longer for it than the new rate takes."""
        self.profile = profile
        for lane in (self._messages, self._bulk):
            lane.change_rate(now_s, profile.rate_bytes_s)

    @property
    def bulk_rate_bytes_s(self) -> float:
        """The rate of bulk transfer without competing traffic."""
        return min(
            self.profile.rate_bytes_s, self.source.egress.rate_bytes_s, self.target.ingress.rate_bytes_s
        )

    def message_s(self, now_s: float, size_bytes: int) -> float:
        """When a small message that leaves now arrives. It waits for other messages, not for bulk: lines
        share fairly, and the share of small flows is never used up."""
        profile = self.profile
        draw = self.rng.random
        at_s = now_s if profile.rate_bytes_s == math.inf else self._messages.take(now_s, size_bytes)
        at_s += profile.latency_s + profile.jitter_s * draw()
        return at_s + self._resends_s() if profile.loss else at_s

    def bulk_s(self, now_s: float, size_bytes: float) -> float:
        """When a piece of bulk arrives: it waits for the sender's card, the line and the receiver's card."""
        profile = self.profile
        at_s = max(
            self.source.egress.take(now_s, size_bytes),
            self._bulk.take(now_s, size_bytes),
            self.target.ingress.take(now_s, size_bytes),
        )
        at_s += profile.latency_s + profile.jitter_s * self.rng.random()
        return at_s + self._resends_s() if profile.loss else at_s

    def drop_bulk(self, now_s: float, size_bytes: float) -> None:
        """Bulk on its way is dropped with its connection: nothing waits for it any more."""
        for lane in (self.source.egress, self._bulk, self.target.ingress):
            lane.give_back(now_s, size_bytes)

    def _resends_s(self) -> float:
        delay_s, again = 0.0, 0
        while again < RESEND_CAP and self.rng.random() < self.profile.loss:
            delay_s += self.profile.resend_s * 2**again
            again += 1
        return delay_s
