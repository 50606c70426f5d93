"""Runs programs in a sandbox of this process's user, as a child of the tests: `python trials.py MODE <
tasks`.

Reads a JSON list of [function, payload, limits]; writes the list of outcomes. MODE "none" calls the function
in a plain child process instead: the negative control. MODE "devices" is the sandbox of programs that use a
GPU.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from gleaner.actors.reward.sandbox.detection import detect
from gleaner.actors.reward.sandbox.host_end import HostSandbox
from gleaner.actors.reward.sandbox.port import Isolation, Limits, Work

DEVICES = "devices"


def plainly(function: str, payload: bytes) -> dict[str, object]:
    import escapes

    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.chdir(tempfile.mkdtemp(dir="/var/tmp", prefix="gleaner-plain-"))
        try:
            os.write(write, getattr(escapes, function)(payload)[:4096])
        finally:
            os._exit(0)
    os.close(write)
    result = b""
    while part := os.read(read, 4096):
        result += part
    os.close(read)
    _, status = os.waitpid(pid, 0)
    return {"status": "ok" if result else f"wait status {status}", "result": result.decode("latin-1")}


def main() -> None:
    mode, tasks = sys.argv[1], json.load(sys.stdin)
    if mode == "none":  # controls may mount and change files, so they get a mount namespace of their own
        json.dump([plainly(function, payload.encode()) for function, payload, _ in tasks], sys.stdout)
        return
    devices = ["/dev/zero"] if mode == DEVICES else []  # what a GPU opens does not depend on the device
    host = detect(Isolation.NAMESPACES.value if mode == DEVICES else mode)
    sandbox = HostSandbox(host, ["escapes"], path=[str(Path(__file__).parent)], devices=devices)
    found = []
    for function, payload, limits in tasks:
        work = Work(function=f"escapes:{function}", payload=payload.encode(), limits=Limits(**limits))
        outcome = sandbox.run(work)
        found.append(
            {
                "status": outcome.status.value,
                "result": outcome.result.decode("latin-1"),
                "detail": outcome.detail,
                "cpu_s": outcome.cpu_s,
                "wall_s": outcome.wall_s,
                "stderr": outcome.stderr[-300:].decode("latin-1"),
            }
        )
    sandbox.close()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
