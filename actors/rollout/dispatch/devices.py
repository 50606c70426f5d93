"""Device: hardware shared by several instances, and their order of getting work.

Pure. Two engines on one device do not decode twice as fast as one: together they make two passes over the
weights in place of one. So the instances of a device take turns: the first turn has those that the device
runs side by side at full speed. The next ones get the requests for which those have no slots.
"""

from collections.abc import Callable, Iterable, Mapping
from math import ceil, floor
from typing import TypeVar

from gleaner.actors.protocol.device import Device

T = TypeVar("T")

ROUNDING = 1e-6
"""Tolerance, so that shares of a third add up to one."""


def turns(instances: Iterable[T], device: Callable[[T], Device | None]) -> list[list[T]]:
    """Group instances, given in order of preference, by the turn in which they get work. One with a device of
    its own (None) is in the first turn."""
    taken: dict[str, float] = {}
    by_turn: list[list[T]] = [[]]
    for instance in instances:
        turn, shared = 0, device(instance)
        if shared is not None:
            taken[shared.name] = taken.get(shared.name, 0.0) + shared.share
            turn = max(0, ceil(taken[shared.name] - ROUNDING) - 1)
        by_turn += [[] for _ in range(turn + 1 - len(by_turn))]
        by_turn[turn].append(instance)
    return by_turn


def crowds(decoding: Mapping[str, Device | None], device: Device | None) -> bool:
    """Whether these instances, if all of them decode, need more than the whole of this device."""
    shares = (
        other.share
        for other in decoding.values()
        if other is not None and device is not None and other.name == device.name
    )
    return sum(shares) > 1.0 + ROUNDING


def carried(devices: Iterable[Device | None]) -> int:
    """How many instances like these their devices run side by side; 0: no bound, as one of them has a device
    of its own, or none is known."""
    shares: dict[str, float] = {}
    for device in devices:
        if device is None:
            return 0
        shares[device.name] = max(device.share, shares.get(device.name, 0.0))
    return sum(max(1, floor(1.0 / share + ROUNDING)) for share in shares.values())
