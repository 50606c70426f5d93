"""Inventory of a host: cores, memory, GPUs.

A host without a GPU, or without a driver, is a normal host. Owns the queries, nothing else.
"""

import logging
import socket
from collections.abc import Callable
from typing import Protocol

import psutil
import pynvml

from gleaner.actors.protocol.cluster import Inventory

log = logging.getLogger("nodeagent")


class Nvml(Protocol):
    """The part of NVML (the module pynvml) that is asked."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...
    def nvmlDeviceGetName(self, handle: object) -> str | bytes: ...


def take_inventory(nvml: Nvml = pynvml, hostname: Callable[[], str] = socket.gethostname) -> Inventory:
    """This host, now. Cores are those that this process may use."""
    try:
        cores = len(psutil.Process().cpu_affinity())
    except (AttributeError, psutil.Error):  # no such call on this system, or not allowed
        cores = psutil.cpu_count() or 1
    return Inventory(
        hostname=hostname(),
        cores=cores,
        memory_bytes=psutil.virtual_memory().total,
        gpus=gpus(nvml),
    )


def gpus(nvml: Nvml) -> tuple[str, ...]:
    """Names of the GPUs; empty if there is none or its driver does not answer."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as problem:
        log.info("no GPU here: %s", problem)
        return ()
    try:
        names = [
            nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(index))
            for index in range(nvml.nvmlDeviceGetCount())
        ]
    except nvml.NVMLError as problem:
        log.warning("the GPU driver does not answer: %s", problem)
        return ()
    finally:
        nvml.nvmlShutdown()
    return tuple(name.decode() if isinstance(name, bytes) else name for name in names)
