"""Forks of `transfer` processes: `python -m tests.actors.weights.forked_hosts`.

Each line that it reads is a command line as words in JSON; it forks one process and prints the pid. The
imports, which take a second, are done once. All forked processes end with it, and it ends with its parent.
"""

import ctypes
import json
import os
import signal
import sys

from gleaner.actors.weights import agent  # noqa: F401 (imported once for all forks)
from gleaner.actors.weights.disk import writer  # noqa: F401
from gleaner.nodeagent import process

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # an ended process is gone at once
    while line := sys.stdin.buffer.readline():
        if pid := os.fork():
            print(pid, flush=True)
            continue
        die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os._exit(process.main(json.loads(line)))


if __name__ == "__main__":
    main()
