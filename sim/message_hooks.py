"""Hooks on all messages of simulated processes, for faults and readable traces.

A fault may wait for one message. Owns the hooks. They are where `rlctl tap` is in production, so a message is
seen decoded, between the links and the actors: an incoming one before it is handled, an outgoing one before
it is sent.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gleaner.sim.hosts import SimProcess
from gleaner.supervisor.inspection.tap import Direction, Tap
from gleaner.supervisor.message import Message


class ObservedMessage(msgspec.Struct, frozen=True):
    """A message that passes a process, between two actors. `mode`: `tell`, `ask`, `reply` or `error`."""

    process: SimProcess
    direction: Direction
    mode: str
    source: str
    to: str
    message: Message

    @property
    def kind(self) -> str:
        """Kind of the message."""
        return type(self.message).__name__


Hook = Callable[[ObservedMessage], None]
"""Called in the turn in which the message passes. A process that is killed there neither handles an incoming
message nor sends an outgoing one. An exception is a finding of the run: the process does not see it."""


class Watcher(Tap):
    """The tap of one process.

    Args:
        hooks: of the whole cluster; one may be added at any time.
    """

    def __init__(self, process: SimProcess, hooks: list[Hook]) -> None:
        super().__init__(lambda _: None)
        self._process, self._hooks = process, hooks

    def seen(self, direction: Direction, mode: str, source: str, to: str, message: Message) -> None:
        """See `Tap`."""
        seen = ObservedMessage(self._process, direction, mode, source, to, message)
        for hook in list(self._hooks):
            try:
                hook(seen)
            except Exception as problem:  # noqa: BLE001 (the process would take it for a failure of its link)
                self._process.loop.world_failed("a hook on messages failed", problem)
