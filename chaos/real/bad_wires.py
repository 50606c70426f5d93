"""Bad links between hosts: the processes that carry their packets, and the routes.

Owns those processes. `packets` defines the effect on packets; `gleaner.chaos.wire_faults` makes cuts and
rates.
"""

import contextlib
import itertools
import json
import subprocess
import sys

from gleaner.chaos.netns import Host
from gleaner.chaos.real.forwarder import UP
from gleaner.chaos.real.packets import Quality

END_S = 10.0
QUEUE_PACKETS = 2000


class NoBadWire(RuntimeError):
    """The link could not be made; the text gives the cause."""


class BadWire:
    """Between two hosts, until `mend`."""

    def __init__(self, one: Host, other: Host, device: str, quality: Quality, seed: str) -> None:
        argv = [sys.executable, "-m", "gleaner.chaos.real.forwarder"]
        argv += ["--between", str(one.keeper), str(other.keeper), "--device", device, "--seed", seed]
        argv += ["--loss", str(quality.loss), "--duplicate", str(quality.duplicate)]
        argv += ["--delay", str(quality.delay_s), "--jitter", str(quality.jitter_s)]
        argv += ["--flips", str(quality.flips)]
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,  # the forwarder ends with its input, however this process ends
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != UP:
            _, output = self._process.communicate()
            raise NoBadWire(f"no device between {one.name} and {other.name}: {output.strip()[-300:]}")
        try:
            for here, there in ((one, other), (other, one)):
                here.ip("link", "set", device, "up", "txqueuelen", str(QUEUE_PACKETS))
                here.ip("route", "add", f"{there.address}/32", "dev", device, "src", here.address)
        except BaseException:
            self.mend()
            raise

    def mend(self) -> dict[str, int]:
        """Remove it; return the counts of affected packets. A second call returns none."""
        if self._process.poll() is not None:
            return {}
        try:
            output, _ = self._process.communicate(input="", timeout=END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            output, _ = self._process.communicate()
        lines = output.strip().splitlines()
        with contextlib.suppress(ValueError, IndexError):
            return {str(key): int(count) for key, count in json.loads(lines[-1]).items()}
        return {}


class BadWires:
    """All of them. A device has the same name on both of its hosts."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._wires: list[BadWire] = []

    def make(self, one: Host, other: Host, quality: Quality, seed: str) -> BadWire:
        """Make a bad link. Raises NoBadWire, NoNamespaces."""
        wire = BadWire(one, other, f"bad{next(self._numbers)}", quality, seed)
        self._wires.append(wire)
        return wire

    def undo(self) -> None:
        """Mend every one."""
        for wire in self._wires:
            wire.mend()
        self._wires.clear()
