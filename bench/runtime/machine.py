"""Machine on which the figures were measured."""

import os
import platform
from pathlib import Path


def machine() -> dict[str, str]:
    """Processor, cores, memory, kernel, Python, and the load before the run."""
    busy = os.getloadavg()[0]
    return {
        "cpu": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load before the run": f"{busy:.2f}",
    }


def _processor() -> str:
    known: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        known.setdefault(key.strip(), value.strip())
    name = known.get("model name", platform.machine())
    return f"{name} (family {known['cpu family']})" if "cpu family" in known else name
