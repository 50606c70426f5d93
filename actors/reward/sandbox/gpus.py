"""GPU devices of this host that a sandbox may have, by its task's own choice.

Owns their paths and the folders of their driver's libraries. A program that has them reaches the GPU's kernel
driver, with any request of its interface: that is more of the kernel than any other program of a sandbox has.
"""

import glob
import os
import re

_DEVICE = re.compile(r"/dev/nvidia(\d+|ctl|-uvm)")
_LIBRARY = "libcuda.so.1"
_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib")
"""Where containers get the driver's libraries, outside of the loader's own search."""
ADDRESS_BYTES = 2**47
"""A program that uses a GPU maps the whole range of addresses; its memory is limited as it is used."""
PROCESSES, OPEN_FILES = 64, 512
"""Threads of the driver's library count as processes."""


def devices() -> list[str]:
    """The device files of all GPUs; none where there is no GPU."""
    found = sorted(path for path in glob.glob("/dev/nvidia*") if _DEVICE.fullmatch(path))
    return found if any(path[len("/dev/nvidia") :].isdigit() for path in found) else []


def environment() -> dict[str, str]:
    """What a program needs to find the driver's library."""
    folders = [folder for folder in _FOLDERS if os.path.exists(f"{folder}/{_LIBRARY}")]
    return {"LD_LIBRARY_PATH": ":".join(folders)} if folders else {}
