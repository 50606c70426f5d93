"""A process that sends heartbeats: `python beating_process.py [SPIN_S]`.

With a number, SPIN_S seconds of work block its loop once; then it prints "spun".
"""

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from watched_process import system_of

from gleaner.supervisor import die_with_parent


def spin(seconds: float) -> None:
    """Use the processor for this many seconds."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


async def main(spin_s: float) -> None:
    with TemporaryDirectory() as directory:
        system = system_of("beating", Path(directory))
        system.start()
        await asyncio.sleep(0.5)  # the first heartbeat is sent
        print("up", flush=True)
        if spin_s:
            spin(spin_s)
            print("spun", flush=True)
        await asyncio.sleep(600.0)


if __name__ == "__main__":
    die_with_parent()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0))
