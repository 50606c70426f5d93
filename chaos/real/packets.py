"""Packets on a bad wire: lost, doubled, late or with a flipped bit. Pure, seeded.

Owns the draws and the checksum that makes a flipped bit look like sent so: TCP itself detects a wire that
damages packets, but not one with correct checksums.
"""

import heapq
import random
import struct
from dataclasses import dataclass, field

LARGE_BYTES = 1000
"""A payload beyond it is bulk: chunks of weights travel in full segments, most messages are smaller."""
MAX_WAITING = 20_000
"""Packets on a wire at once; later ones are dropped, as by a full queue of a router."""
TCP = 6


@dataclass(frozen=True, slots=True)
class Quality:
    """Shares and seconds as in `gleaner.chaos.faults.BadLink`; flips: how many large packets have a bit
    flipped."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    flips: int = 0


@dataclass(slots=True)
class Counts:
    """Counts of a wire."""

    passed: int = 0
    lost: int = 0
    doubled: int = 0
    late: int = 0
    flipped: int = 0
    overflowed: int = 0


@dataclass
class Wire:
    """One direction: packets enter with the time, and leave when they are due. `seed`: the direction's
    own."""

    quality: Quality
    seed: str
    counts: Counts = field(default_factory=Counts)
    _waiting: list[tuple[float, int, bytes]] = field(default_factory=list)
    _age: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def put(self, packet: bytes, now_s: float) -> None:
        """A packet is sent."""
        quality, counts = self.quality, self.counts
        if self._rng.random() < quality.loss:
            counts.lost += 1
            return
        if counts.flipped < quality.flips:
            damaged = flip(packet, self._rng)
            counts.flipped += damaged is not packet
            packet = damaged
        copies = 1 + (self._rng.random() < quality.duplicate)
        counts.doubled += copies - 1
        for _ in range(copies):
            if len(self._waiting) >= MAX_WAITING:
                counts.overflowed += 1
                return
            late_s = max(0.0, quality.delay_s + self._rng.uniform(-quality.jitter_s, quality.jitter_s))
            counts.late += late_s > 0
            self._age += 1
            heapq.heappush(self._waiting, (now_s + late_s, self._age, packet))

    def due(self, now_s: float) -> list[bytes]:
        """The packets that arrive now."""
        arrived = []
        while self._waiting and self._waiting[0][0] <= now_s:
            arrived.append(heapq.heappop(self._waiting)[2])
        self.counts.passed += len(arrived)
        return arrived

    def next_s(self) -> float | None:
        """Time at which the next packet is due; None while none is under way."""
        return self._waiting[0][0] if self._waiting else None


def flip(packet: bytes, rng: random.Random) -> bytes:
    """The packet with a bit of a large TCP payload flipped and its checksum made right; others unchanged."""
    if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != TCP:
        return packet
    begin = (packet[0] & 15) * 4
    payload = begin + (packet[begin + 12] >> 4) * 4
    if len(packet) - payload < LARGE_BYTES:
        return packet
    changed = bytearray(packet)
    changed[rng.randrange(payload, len(packet))] ^= 1 << rng.randrange(8)
    changed[begin + 16 : begin + 18] = b"\0\0"
    segment = bytes(changed[begin:])
    pseudo = packet[12:20] + struct.pack("!BBH", 0, TCP, len(segment))
    changed[begin + 16 : begin + 18] = struct.pack("!H", checksum(pseudo + segment))
    return bytes(changed)


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
