"""A full tmpfs: `python -m tests.actors.weights.small_memory DIRECTORY`.

It runs in its own mount namespace. The receiver's shared memory is a real tmpfs with space for one and a
half images, and a little later for more. It prints the refusal, then DONE.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from gleaner.actors.weights.transfer import fetch as fetching
from gleaner.actors.weights.transfer import source_lookup as finding
from gleaner.supervisor import Refused
from tests.actors.weights.weight_hosts import SIZE, hosts

fetching.ATTEMPTS, finding.RETRY_S = 2, 0.01


def mount(where: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)], check=True)


async def main(directory: Path) -> None:
    (directory / "b").mkdir()
    mount(directory / "b", f"size={SIZE * 3 // 2}")
    async with hosts(directory, "ab", delta=False) as all:
        old, new = os.urandom(SIZE), os.urandom(SIZE)
        await all.fetch("b", 1, await all.publish(1, old))
        root = await all.publish(2, new)
        try:
            await all.fetch("b", 2, root)
        except Refused as refusal:
            print(refusal)
        assert all.image("b", 1) == old
        assert all.served("a") == SIZE, "nothing was pulled without free space for it"
        assert [path.name for path in (directory / "b").iterdir()] == ["v000000001"]
        mount(directory / "b", f"remount,size={SIZE * 3}")
        await all.fetch("b", 2, root)
        assert all.image("b", 2) == new
    print("DONE")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
