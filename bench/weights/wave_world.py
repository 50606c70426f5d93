"""World of a modelled wave: cards, links, events, and the result."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from gleaner.actors.weights.shards.owners import OFFER_DEADLINE_S
from gleaner.actors.weights.transfer.source_lookup import ASK_AGAIN_S, ASK_SOON_S, RETRY_S
from gleaner.transport.bulk_pull import STALL_S

ORIGIN = "origin"
RECEIVER_BYTES_S = 6.25e9  # 50 Gbps

Kind = Literal["join", "kill", "vanish", "drain", "lie"]


@dataclass(frozen=True, slots=True)
class Event:
    """At `at_s` this happens to the receiver `name`: it joins; or its process is killed, so that its
    connections break; or its host vanishes, so that they are silent; or it gets a notice, and is gone
    `World.drain_s` later; or the chunks that it serves from now on are wrong."""

    at_s: float
    kind: Kind
    name: str
    rate_bytes_s: float = RECEIVER_BYTES_S
    site: str = ""


@dataclass(frozen=True, slots=True)
class World:
    """Sizes in bytes, rates in bytes/s. `hop_s`: from a chunk's arrival until it can be served.
    `ask_again_s`: from ask to ask, `ask_soon_s` where no chunk arrived meanwhile. `broken_s`, `silent_s`:
    until the receiver gives up a connection that broke, or fell silent, and `retry_s` until it asks for
    another; `known_s`, `dead_s`: until the tracker knows of a killed process, a silent host; `offer_s`: until
    a silent host that it names is given up. `star`: all pull from the origin."""

    payload_bytes: int = 16_000_000_000
    chunk_bytes: int = 16_000_000
    origin_bytes_s: float = 25e9  # 200 Gbps
    crossing_bytes_s: float = math.inf
    hop_s: float = 0.001
    ask_s: float = 0.001
    ask_again_s: float = ASK_AGAIN_S
    ask_soon_s: float = ASK_SOON_S
    retry_s: float = RETRY_S
    broken_s: float = 0.02
    silent_s: float = STALL_S
    known_s: float = 0.1
    dead_s: float = 4.0
    offer_s: float = OFFER_DEADLINE_S
    sample_s: float = 0.1
    drain_s: float = 2.0
    star: bool = False

    @property
    def chunks(self) -> int:
        """Number of chunks in the payload."""
        return math.ceil(self.payload_bytes / self.chunk_bytes)

    def bytes_of(self, chunk: int) -> int:
        """The last one may be smaller."""
        return min(self.chunk_bytes, self.payload_bytes - chunk * self.chunk_bytes)


@dataclass(slots=True)
class Outcome:
    """`took_s`: from joining to the last chunk; `done_s`: time of that chunk; `edges`: (time, receiver,
    parent) of each decision; `curves`: (time, share held) of each receiver. Bytes that left each peer; that
    crossed into each site; that arrived uselessly at living receivers."""

    took_s: dict[str, float] = field(default_factory=dict)
    done_s: dict[str, float] = field(default_factory=dict)
    edges: list[tuple[float, str, str]] = field(default_factory=list)
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    served_bytes: Counter[str] = field(default_factory=Counter)
    crossed_bytes: Counter[str] = field(default_factory=Counter)
    wasted_bytes: int = 0

    @property
    def last_s(self) -> float:
        """Time at which the last receiver had everything."""
        return max(self.done_s.values())

    @property
    def longest_s(self) -> float:
        """Longest time of a receiver from its joining on."""
        return max(self.took_s.values())
