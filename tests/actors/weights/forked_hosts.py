"""`python -m tests.actors.weights.forked_hosts`: forks a `transfer` process of a host for each line that it
reads, the words of its command line in JSON, and answers with its pid. What takes a second, the imports, is
done once. All that it forked ends with it, and it with whoever started it."""

import ctypes
import json
import os
import signal
import sys

from gleaner.actors.weights import agent  # noqa: F401 (so that no fork has to)
from gleaner.actors.weights.disk import writer  # noqa: F401
from gleaner.nodeagent import process

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever ends is gone at once
    while line := sys.stdin.buffer.readline():
        if pid := os.fork():
            print(pid, flush=True)
            continue
        die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os._exit(process.main(json.loads(line)))


if __name__ == "__main__":
    main()
