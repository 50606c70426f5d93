"""Node: a host of the cluster with its node agent, restarted as by an init system.

Owns one agent's process: its start, its unforeseen end, its restart at the same address. `cluster` owns the
list of hosts and the common end.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gleaner.chaos.netns import Host
from gleaner.chaos.real.watchdog import Watchdog
from gleaner.chaos.run_processes import AGENT
from gleaner.supervisor.process import PARENT_VARIABLE

HEAD, RESERVED = "head", "reserved-1"
AGAIN_S = 1.0  # until an agent that ended is started again, as a unit with RestartSec=1 would be
GONE_S = 5.0  # for a killed agent to be collected
KINDS: Mapping[str, tuple[str, ...]] = {
    HEAD: (AGENT, "rollout", "reward"),
    RESERVED: (AGENT, "transfer", "trainer"),
    "preemptible": (AGENT, "transfer", "engine"),
}
"""The processes of a host while a job runs."""


@dataclass(slots=True)
class Node:
    """See the module.

    options: of its node agent. output: file for its output. wanted: it is started again when it ends. exits:
    how it ended so far, by itself or not. hung: how often its watchdog ended it.
    """

    name: str
    host: Host
    options: Sequence[str]
    output: Path
    process: subprocess.Popen[bytes] | None = None
    wanted: bool = True
    ended_at: float | None = None
    exits: list[int] = field(default_factory=list)
    watchdog: Watchdog | None = None
    hung: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:
        """Its processes while a job runs."""
        return KINDS.get(self.name, KINDS["preemptible"])

    def start(self) -> None:
        """Start its node agent (again); does not wait until it is up."""
        argv = [sys.executable, "-m", "gleaner.nodeagent", "start", "--name", self.name, *self.options]
        if self.watchdog is not None:
            self.watchdog.close()
        self.watchdog = Watchdog()
        with self.output.open("ab") as out:
            self.process = self.host.popen(argv, output=out, env={**tied_to_us(), **self.watchdog.env})
        self.wanted, self.ended_at = True, None

    def tend(self) -> str:
        """Restart it where it ended by itself a while ago; return the event as text, "" for none."""
        event = ""
        if self.process is not None and self.watchdog is not None and (why := self.watchdog.late()):
            self.process.kill()
            self.process.wait(GONE_S)
            self.hung += 1
            event = f"the node agent of {self.name} was killed: {why}"
        if self.process is not None and (code := self.process.poll()) is not None:
            self.process, self.ended_at = None, time.monotonic()
            self.exits.append(code)
            if self.wanted and not event:
                event = f"the node agent of {self.name} ended ({how(code)})"
        late = self.ended_at is not None and time.monotonic() - self.ended_at >= AGAIN_S
        if self.process is None and self.wanted and late:
            self.start()
        return event


def tied_to_us() -> dict[str, str]:
    """An environment in which a started process dies with this one."""
    return {**os.environ, PARENT_VARIABLE: str(os.getpid())}


def how(code: int) -> str:
    """An exit code of `Popen`, as text."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
