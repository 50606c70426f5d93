"""Hosts with a full tmpfs: `python -m tests.actors.weights.full_hosts DIRECTORY`.

It runs in its own mount namespace. Shared memory and the folder of versions are real tmpfs without free
space at first, and with free space a little later. It prints DONE when all versions arrived as expected.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from gleaner.actors.cluster.job import memory_dir
from gleaner.actors.weights.disk.layout import folder_of
from tests.actors.weights.real_hosts import CHAINS, SIZE, RealHosts, forks, real_hosts


def mount(where: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)], check=True)


async def full_memory(hosts: RealHosts) -> None:
    """Full memory of "b": it waits for free space, keeps what it has, and continues."""
    memory = memory_dir(hosts.job({}), "b")
    memory.mkdir()
    mount(memory, f"size={SIZE * 3 // 2}")
    hosts.start("b", **CHAINS)
    await hosts.up("b")
    await hosts.pull("b", await hosts.publish(1, os.urandom(SIZE)))
    second = await hosts.publish(2, os.urandom(SIZE))
    pull = asyncio.create_task(hosts.pull("b", second))
    await hosts.until(lambda: "enlarge the file system" in hosts.log("b"), "the error is logged")
    assert hosts.image("b", 1) == hosts.published[1]
    assert hosts.chunks("b", 2) == 0
    mount(memory, f"remount,size={SIZE * 5}")
    assert (await pull).pulled_bytes == SIZE, "nothing was pulled without free space for it"
    assert hosts.image("b", 2) == hosts.published[2]


async def full_disk(hosts: RealHosts, disk: Path) -> None:
    """Full `weights.disk`: the version is left out, no pull waits for it, the next one is whole."""
    await hosts.until(lambda: "version 2 is not on disk" in hosts.log("a"), "the error is logged")
    assert "No space left" in hosts.log("a")
    assert not list(disk.glob("weight_v*")), "no partial version has a version's name"
    mount(disk, f"remount,size={SIZE * 4}")
    third = await hosts.publish(3, os.urandom(SIZE))
    await hosts.pull("b", third)
    await hosts.until(lambda: "version 3 is on disk: whole" in hosts.log("a"), "it is written")
    files = list((disk / folder_of(3)).glob("*.safetensors"))
    assert hosts.published[3] in b"".join(file.read_bytes() for file in files)


async def main(directory: Path) -> None:
    disk = directory / "disk"
    disk.mkdir()
    mount(disk, f"size={SIZE // 2}")
    with forks() as forked:
        async with real_hosts(directory, forked, "", **CHAINS) as hosts:
            hosts.start("a", **CHAINS, disk=str(disk), delta=False)
            await hosts.up("a")
            await full_memory(hosts)
            await full_disk(hosts, disk)
        memory = memory_dir(hosts.job({}), "b")
        subprocess.run(["umount", str(memory)], check=True)
        memory.rmdir()  # it exists outside of the namespace too
    print("DONE")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
