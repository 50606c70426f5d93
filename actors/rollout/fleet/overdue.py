"""OverdueWork: overdue tokens, and queued requests without free capacity.

Owns the list of these waits for `rlctl waits`, and the event if there was no free capacity for long. It gives
up no instance: the manager's sweep does.
"""

from collections.abc import Callable, Iterator

from gleaner.actors.rollout.fleet.instance_table import Instance, Instances
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.supervisor import Context
from gleaner.supervisor.system_messages import WaitState

ROOM_LATE_S = 60.0
"""Requests that no instance takes for this many seconds are worth a log line, again each time: no instance
serves, or all are stuck."""
INSTANCES = "the instances"


class OverdueWork:
    """See the module.

    Args:
        deadline_s: silence after which an instance that holds requests is given up.
        uncommitted: whether frames of this incarnation of an instance wait for their commit.
    """

    def __init__(
        self,
        ctx: Context,
        state: RolloutState,
        instances: Instances,
        deadline_s: float,
        uncommitted: Callable[[str, int], bool],
    ) -> None:
        self._ctx, self._state, self._instances = ctx, state, instances
        self._deadline_s, self._uncommitted = deadline_s, uncommitted
        self._moved_s = self._said_s = ctx.turn_time()
        ctx.lists_waits(self.waits)

    def moved(self) -> None:
        """Requests were placed."""
        self._moved_s = self._said_s = self._ctx.turn_time()

    def look(self, now: float) -> None:
        """Called from time to time: report if waiting requests find no free capacity for long."""
        if not self._state.log.waiting:
            self._moved_s = self._said_s = now
        elif now - self._said_s >= ROOM_LATE_S:
            self._said_s = now
            self._ctx.late("room for requests", on=INSTANCES, waited_s=now - self._moved_s)

    def silent_s(self, instance: Instance, now: float) -> float:
        """For how long this instance has sent nothing that it could send. Until its frames are committed this
        process grants it no more credit, and a dispatch is sent after its own commit: a slow disk of this
        process is no silence of the instance."""
        if instance.taking or self._uncommitted(instance.name, instance.incarnation):
            return 0.0
        return now - instance.heard_s

    def silent(self, name: str, silent_s: float) -> None:
        """This instance is given up for its silence."""
        self._ctx.late("tokens", on=name, waited_s=silent_s, reason="given up")

    def waits(self, _loop_s: float) -> Iterator[WaitState]:
        """All current waits."""
        now = self._ctx.turn_time()
        for name, stream in self._state.streams.items():
            instance = self._instances.get(name)
            if instance is not None and stream.held:
                silent_s = self.silent_s(instance, now)
                yield self._on("tokens", name, silent_s, self._deadline_s - silent_s)
        if self._state.log.waiting:
            left_s = self._said_s + ROOM_LATE_S - now
            yield self._on("room for requests", INSTANCES, now - self._moved_s, left_s)

    def _on(self, what: str, on: str, since_s: float, left_s: float) -> WaitState:
        return WaitState(who=self._ctx.name, what=what, on=on, since_s=since_s, left_s=max(left_s, 0.0))
