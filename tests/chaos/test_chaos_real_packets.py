"""A bad wire: losses, duplicates, delays and flips, drawn from the seed.

All are counted and bounded.
"""

import random
import struct

from hypothesis import given
from hypothesis import strategies as st

from gleaner.chaos.real.packets import LARGE_BYTES, MAX_WAITING, Quality, Wire, checksum, flip


def segment(payload: bytes) -> bytes:
    """A TCP segment in an IPv4 packet, with a right checksum."""
    source, target = bytes([10, 77, 0, 1]), bytes([10, 77, 0, 2])
    head = struct.pack("!HHIIBBHHH", 7700, 40000, 1, 1, 5 << 4, 16, 512, 0, 0)
    tcp = head + payload
    pseudo = source + target + struct.pack("!BBH", 0, 6, len(tcp))
    tcp = tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]
    packet = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 1, 0, 64, 6, 0, source, target)
    return packet + tcp


def sound(packet: bytes) -> bool:
    """Whether the receiver's TCP accepts the packet."""
    tcp = packet[20:]
    return checksum(packet[12:20] + struct.pack("!BBH", 0, 6, len(tcp)) + tcp) == 0


@given(st.binary(min_size=LARGE_BYTES, max_size=1448), st.integers())
def test_flipped_bit_changes_payload_unseen_by_tcp(payload: bytes, seed: int) -> None:
    packet = segment(payload)
    assert sound(packet)
    changed = flip(packet, random.Random(seed))
    assert sound(changed)
    assert changed[:36] == packet[:36]
    different = int.from_bytes(changed[40:], "big") ^ int.from_bytes(packet[40:], "big")
    assert different.bit_count() == 1


@given(st.binary(max_size=LARGE_BYTES - 1))
def test_small_and_non_tcp_packets_stay_unchanged(payload: bytes) -> None:
    rng = random.Random(0)
    assert flip(segment(payload), rng) == segment(payload)
    udp = bytearray(segment(b"x" * 1400))
    udp[9] = 17
    assert flip(bytes(udp), rng) == bytes(udp)
    assert flip(payload[:30], rng) == payload[:30]


@given(
    st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.1), st.floats(0, 0.1), st.integers(0, 5), st.integers()
)
def test_packet_is_lost_or_arrives_within_its_delay(
    loss: float, duplicate: float, delay_s: float, jitter_s: float, flips: int, seed: int
) -> None:
    wire = Wire(Quality(loss, duplicate, delay_s, jitter_s, flips), str(seed))
    for number in range(200):
        wire.put(segment(b"%04d" % number * 300), 1.0)
    first_s = wire.next_s()
    assert first_s is None or first_s >= 1.0 + max(0.0, delay_s - jitter_s) - 1e-9
    arrived = wire.due(1.0 + delay_s + jitter_s + 1e-9)
    assert wire.next_s() is None
    counts = wire.counts
    assert len(arrived) == counts.passed == 200 - counts.lost + counts.doubled
    assert counts.flipped == min(flips, 200 - counts.lost)


def test_faultless_wire_keeps_order_and_loses_nothing() -> None:
    wire = Wire(Quality(delay_s=0.05), "any")
    sent = [b"%d" % number for number in range(1000)]
    for number, packet in enumerate(sent):
        wire.put(packet, number * 0.001)
    assert wire.due(0.0499) == []
    assert wire.due(10.0) == sent


def test_packet_fate_is_deterministic_for_a_seed() -> None:
    def fate(seed: str) -> list[bytes]:
        wire = Wire(Quality(0.3, 0.3, 0.01, 0.01), seed)
        for number in range(300):
            wire.put(b"%d" % number, 0.0)
        return wire.due(1.0)

    assert fate("1/there") == fate("1/there")
    assert fate("1/there") != fate("1/back")


def test_packets_waiting_on_a_wire_are_bounded() -> None:
    wire = Wire(Quality(delay_s=60.0), "any")
    for _ in range(MAX_WAITING + 50):
        wire.put(b"x", 0.0)
    assert wire.counts.overflowed == 50
    assert len(wire.due(61.0)) == MAX_WAITING
