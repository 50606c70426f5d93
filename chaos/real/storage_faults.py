"""File faults: a disk or shared memory without space, a damaged image of weights.

Owns their injection into a folder or a file, as this process sees it.
"""

import errno
import os
from pathlib import Path

from gleaner.chaos.faults import DiskFull
from gleaner.chaos.netns import SHARED_MEMORY, Host, NoNamespaces
from gleaner.chaos.real.active_fault import ActiveFault, Evidence, NoEffect
from gleaner.chaos.real.faults import MemoryFull

BALLAST = "ballast"
LAST_BYTES = 1 << 20
PAGE_BYTES = 4096


def fill_disk(folder: Path, fault: DiskFull) -> ActiveFault:
    """Fill the remaining space on the file system of a folder. Raises Missed where that is impossible."""
    ballast = folder / BALLAST
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    try:
        with ballast.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, max(free - LAST_BYTES, 1))
            file.seek(0, os.SEEK_END)
            _fill_up(file.fileno())  # others write too: the free space has changed meanwhile
    except OSError as problem:
        ballast.unlink(missing_ok=True)
        raise NoEffect(f"the disk of {fault.host} could not be filled: {problem.strerror}") from problem

    def mend() -> Evidence:
        ballast.unlink()
        return {"filled_bytes": free}

    return ActiveFault(fault.for_s, mend)


def fill_memory(host: Host, fault: MemoryFull) -> ActiveFault:
    """Shrink the shared memory of a host to its present contents. Nothing is written, because the data would
    use the machine's own memory. Raises Missed where its size cannot be changed."""
    space = os.statvfs(host.path(SHARED_MEMORY))
    size, used = space.f_blocks * space.f_frsize, (space.f_blocks - space.f_bfree) * space.f_frsize

    def resize(nbytes: int) -> None:
        host.command("mount", "-o", f"remount,size={nbytes}", str(SHARED_MEMORY))

    try:
        resize(max(used, PAGE_BYTES))
    except NoNamespaces as problem:  # meanwhile more was written than the new size holds
        raise NoEffect(f"the memory of {fault.host} could not be filled: {problem}") from problem

    def mend() -> Evidence:
        resize(size)
        return {"filled_bytes": size - used}

    return ActiveFault(fault.for_s, mend)


def _fill_up(file: int) -> None:
    """Page by page, until there is no space."""
    try:
        while os.write(file, bytes(PAGE_BYTES)):
            continue
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise


def newest_image(memory: Path) -> Path | None:
    """The newest image of weights in a host's shared memory."""
    return max(memory.glob("gleaner-*/weights/v?????????/model.safetensors"), default=None)


def unfinished_images(memory: Path) -> int:
    """Images in a host's shared memory that are being written, or whose write was broken off."""
    return sum(1 for _ in memory.glob("gleaner-*/weights/v*.draft/model.safetensors"))


def spoil(image: Path) -> None:
    """Change one byte in its middle."""
    with image.open("r+b") as file:
        file.seek(image.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x10]))
