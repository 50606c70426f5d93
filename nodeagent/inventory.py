"""Inventory of a host: cores, memory, GPUs.

A host without a GPU, or without a driver, is a normal host. Owns the queries, nothing else.
"""

import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import Protocol

import psutil
import pynvml

from gleaner.actors.protocol.cluster import Inventory

CORE_GROUPS = "SGLANG_CPU_OMP_THREADS_BIND"
"""SGLang's variable: the cores of each process of a server without GPUs, such as `0-31|32-63`."""

log = logging.getLogger("nodeagent")


class Nvml(Protocol):
    """The part of NVML (the module pynvml) that is asked."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...
    def nvmlDeviceGetName(self, handle: object) -> str | bytes: ...


def take_inventory(
    nvml: Nvml = pynvml,
    hostname: Callable[[], str] = socket.gethostname,
    environment: Mapping[str, str] = os.environ,
) -> Inventory:
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
        core_groups=environment.get(CORE_GROUPS, "").count("|") + 1,
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
