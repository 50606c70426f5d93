"""Devices and assumptions about them, read from `hardware.toml` beside this file.

Owns the two shapes and the look-up by name. `cost` computes what follows from the figures.
"""

from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator, or a processor that takes the place of one. Peaks, as `source` states them.

    flops: dense FLOP/s of `dtype`. link_bytes_per_s: to the other devices of its host, one direction;
    host_link_bytes_per_s: to the host's memory, one direction.
    """

    title: str
    dtype: Literal["bfloat16", "float16", "float32"]
    flops: float
    memory_bytes: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    host_link_bytes_per_s: float
    source: str


class Assumptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shares of the peaks that are reached, and further costs of a step. Shares are of 1, times in seconds.

    Each value's reason is beside it in `hardware.toml`; `fit` replaces some by what a run measured.
    """

    decode_bandwidth: float
    decode_flops: float
    prefill_flops: float
    step_overhead_s: float
    request_overhead_s: float
    prefill_overhead_s: float
    allreduce_latency_s: float
    link_efficiency: float
    memory_fraction: float
    reserved_memory_bytes: float
    admission_reserve_tokens: int
    training_mfu: float
    micro_batch_overhead_s: float
    host_link_efficiency: float
    load_overhead_s: float
    network_efficiency: float
    disk_bytes_per_s: float


class UnknownHardware(ValueError):
    """No device of this name is described; the text names those that are."""


class _Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    devices: dict[str, Device]
    assumptions: dict[str, dict[str, int | float]]


@cache
def _tables() -> _Tables:
    return msgspec.toml.decode(files(__package__).joinpath("hardware.toml").read_bytes(), type=_Tables)


def device_names() -> list[str]:
    """Every device that is described, in the order of the file."""
    return list(_tables().devices)


def device(name: str) -> Device:
    """The figures of a device. Raises `UnknownHardware`."""
    try:
        return _tables().devices[name]
    except KeyError:
        raise UnknownHardware(f"{name!r} is no known device; known are {', '.join(device_names())}") from None


def assumptions(name: str) -> Assumptions:
    """The assumptions about a device. Raises `UnknownHardware`."""
    device(name)
    tables = _tables().assumptions
    return msgspec.convert({**tables["default"], **tables.get(name, {})}, Assumptions)
