"""Abilities: kinds of faults that this machine cannot inject.

Their tools or kernel parts are missing. Owns the trials: each ability is tried on two temporary hosts, a
second in all. A container may have namespaces and lack a TUN device; a kernel may be built without socket
destruction.
"""

import sys
from collections.abc import Mapping

from gleaner.chaos.netns import Host, NoNamespaces, Switch
from gleaner.chaos.real.bad_wires import BadWires, NoBadWire
from gleaner.chaos.real.packets import Quality
from gleaner.chaos.wire_faults import MIN_RATE_BYTES_PER_S

TRY_S = 30.0  # a moment on a quiet machine
_DESTROY = """\
import socket, subprocess, sys
server = socket.create_server((sys.argv[1], 0))
one = socket.create_connection(server.getsockname())
other, _ = server.accept()
subprocess.run(["ss", "-HKtn", "state", "established", "dst", sys.argv[1]], stdout=subprocess.DEVNULL)
try:
    for _ in range(2):
        one.sendall(b"x")
except OSError:
    sys.exit(0)
sys.exit("connections cannot be destroyed from outside (CONFIG_INET_DIAG_DESTROY)")
"""


def impossible() -> dict[str, str]:
    """Kinds of faults that are impossible here, with the reason. Raises NoNamespaces where all are."""
    with Switch() as switch:
        one, other = switch.host("one"), switch.host("other")
        return {
            kind: why
            for kinds, why in (
                (("bad_link", "corrupt_chunk"), _no_tun(one, other)),
                (("bad_link",), _no_rate(switch, one)),
                (("reset",), _no_reset(one)),
            )
            for kind in kinds
            if why
        }


def description(lacking: Mapping[str, str]) -> str:
    """The missing abilities in one line."""
    return "; ".join(f"no {kind}: {why}" for kind, why in lacking.items())


def _no_tun(one: Host, other: Host) -> str:
    wires = BadWires()
    try:
        wires.make(one, other, Quality(), "try")
    except (NoBadWire, NoNamespaces) as problem:
        return str(problem)
    finally:
        wires.undo()
    return ""


def _no_rate(switch: Switch, host: Host) -> str:
    try:
        switch.wires.slow(host, MIN_RATE_BYTES_PER_S)
        switch.wires.quicken(host)
    except (NoNamespaces, OSError) as problem:
        return str(problem)
    return ""


def _no_reset(host: Host) -> str:
    tried = host.run([sys.executable, "-c", _DESTROY, host.address], TRY_S)
    return "" if tried.returncode == 0 else tried.stderr.strip().rpartition("\n")[2]
