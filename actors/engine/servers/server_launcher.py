"""Server launcher: `python -m gleaner.actors.engine.servers.server_launcher COMMAND ...`.

The parent process of a worker's server. Owns one guarantee: nothing of the server outlives the worker,
however that ends. Its standard input is a pipe whose other end the worker holds and never writes to. When
that closes, the whole process group is killed, with any process that is just starting in it. SGLang's own
processes ask the kernel for the same only after they have imported all of it; one whose parent died before
that would stay for ever. Source: prctl(2), pidfd_open(2).
"""

import ctypes
import os
import select
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1


def _die_with_launcher() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(argv: list[str]) -> None:
    """Run the command in this process group until it ends or the worker closes the pipe; ends as it ended."""
    worker = os.dup(0)
    server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=_die_with_launcher)
    ended = os.pidfd_open(server.pid)
    ready, _, _ = select.select([worker, ended], [], [])
    if ended not in ready:
        os.killpg(0, signal.SIGKILL)
    code = server.wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
