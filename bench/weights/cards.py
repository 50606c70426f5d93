"""Network cards on loopback: a rate limit for each address of 127.0.0.0/8.

Hosts on one machine then share no more than real hosts. Owns the queues of `lo` in a network namespace of
this command's own (`inside`): the machine's loopback stays as it is. The rate limits the sending side; a
receiver that pulls from one host at a time gets no more than that. Needs Linux's `tc` (htb), `ip` and
`unshare`, and root.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

INSIDE = "GLEANER_BENCH_CARDS"
BURST_BYTES = 128 << 10  # a packet of loopback has 64 KiB
_SENT = re.compile(r"class htb 1:([0-9a-f]+) .*?Sent (\d+) bytes", re.DOTALL)


def why_not() -> str:
    """Why there can be no cards here; "" where there can be."""
    missing = [tool for tool in ("tc", "ip", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"not found here: {', '.join(missing)} (packages iproute2 and util-linux)"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip()


def inside(module: str) -> None:
    """Re-execute this command in a network namespace of its own; only there does it return. SystemExit where
    that fails."""
    if os.environ.get(INSIDE):
        return
    if why := why_not():
        raise SystemExit(f"cards need a network namespace of their own: {why}")
    command = ["unshare", "--net", sys.executable, "-m", module, *sys.argv[1:]]
    os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})


def limit(addresses: Sequence[str], bytes_s: float) -> None:
    """Limit the sending rate of each address. Call once, inside."""
    _run("ip", "link", "set", "lo", "up")
    _run("tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb", "default", "1", "r2q", "10000")
    _run("tc", "class", "add", "dev", "lo", "parent", "1:", "classid", "1:1", "htb", "rate", "100gbit")
    for number, address in enumerate(addresses, 2):
        rate = ("rate", f"{int(bytes_s * 8)}bit", "burst", str(BURST_BYTES), "cburst", str(BURST_BYTES))
        _run("tc", "class", "add", "dev", "lo", "parent", "1:", "classid", f"1:{number:x}", "htb", *rate)
        match = ("u32", "match", "ip", "src", f"{address}/32", "flowid", f"1:{number:x}")
        _run("tc", "filter", "add", "dev", "lo", "parent", "1:", "protocol", "ip", *match)


def sent_bytes(addresses: Sequence[str]) -> list[int]:
    """Bytes sent by each address of `limit`, with headers."""
    found = {
        int(number, 16): int(nbytes)
        for number, nbytes in _SENT.findall(_run("tc", "-s", "class", "show", "dev", "lo"))
    }
    return [found[number] for number in range(2, 2 + len(addresses))]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
