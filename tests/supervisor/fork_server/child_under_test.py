"""Child processes of these tests: `python -m child_under_test WHAT ...`."""

from gleaner.supervisor.parent import die_with_parent

if __name__ == "__main__":
    die_with_parent()

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from pathlib import Path

from gleaner.supervisor.fork_server.client import ForkServer
from gleaner.supervisor.fork_server.server import holds_image
from gleaner.supervisor.process import ChildProcess, ProcessSpec


def report() -> None:
    """What a child sees of itself, as a line of JSON."""
    preloaded = sys.modules.get("preloaded_under_test")
    seen = {
        "argv": sys.argv,
        "forked": holds_image(),
        "group": os.getpgid(0),
        "loaded_by": getattr(preloaded, "LOADED_BY", 0),
        "parent": os.getppid(),
        "pid": os.getpid(),
        "random": random.random(),
        "sockets": sum(link.startswith("socket:") for link in open_files()),
        "variables": {name: value for name, value in os.environ.items() if name.startswith("GIVEN")},
    }
    print(json.dumps(seen), flush=True)


def open_files() -> list[str]:
    """What its descriptors lead to."""
    links = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            links.append(os.readlink(f"/proc/self/fd/{entry}"))
    return links


async def start_one(forks: ForkServer | None, output: Path, *words: str) -> ChildProcess:
    if forks is not None:
        await forks.ready()
    spec = ProcessSpec([sys.executable, "-m", "child_under_test", *words], output)
    return ChildProcess(spec, lambda _: None, forks)


async def parent_of(output: Path, *, inherits: bool) -> None:
    """Start a child that waits, report both, and wait."""
    forks = ForkServer.inherit() if inherits else ForkServer.execute("preloaded_under_test", os.environ)
    grandchild = await start_one(forks, output, "wait")
    print(grandchild.pid, flush=True)
    await grandchild.wait()


def main(what: str, *words: str) -> None:
    if what == "report":
        report()
    elif what == "exit":
        print("the reason")
        sys.exit(int(words[0]))
    elif what == "fail":
        raise ValueError("the reason")
    elif what == "wait":
        report()
        signal.pause()
    else:
        asyncio.run(parent_of(Path(words[0]), inherits=what == "inherit"))


if __name__ == "__main__":
    main(*sys.argv[1:])
