"""VersionGates: whether an instance serves, or will, a version that a request admits.

Owns the waiting for it. docs/versions.md defines a gate.
"""

import asyncio
from collections.abc import Callable

from gleaner.actors.protocol.requests import Generate, VersionNotReady
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.supervisor import Context, Deadline

LOOK_S = 1.0  # between two checks of the gate, at least: instances report when they serve other weights


class VersionGates:
    """See the module; call `changed` when instances serve other weights."""

    def __init__(self, ctx: Context, journaled: JournaledState, instances: Instances) -> None:
        self._ctx, self._journaled, self._instances = ctx, journaled, instances
        self._served = asyncio.Event()

    def changed(self) -> None:
        """Instances serve other weights than before."""
        self._served.set()

    async def met(self, message: Generate, begun: Callable[[], bool]) -> bool:
        """Wait until an instance serves the requested version, or the request is started; False after
        `wait_s`."""
        until = Deadline.after(min(message.wait_s, message.deadline_s), self._ctx.now())
        async with self._ctx.wait(
            "weights of a version", on="the instances", deadline_s=message.deadline_s + LOOK_S, go_on=True
        ) as wait:
            while not (self._open(message) or begun()):
                left_s = until.left_s(self._ctx.now())
                if left_s <= 0:
                    return False
                self._served.clear()
                await wait.look(self._served, min(left_s, LOOK_S))
        return True

    def not_ready(self, message: Generate) -> VersionNotReady:
        """The answer if the gate is not met."""
        exact = message.exact_version
        target = exact if exact is not None else message.min_version or 0
        return VersionNotReady(
            target=target,
            exact=exact is not None,
            applied=max(self._served_versions(), default=None),
            retryable=exact is None or self._may_come(exact),
        )

    def _may_come(self, version: int) -> bool:
        newest = self._journaled.newest_weights()
        if version in self._journaled.state.versions.failed:
            return False
        return newest is None or version >= newest.version

    def _open(self, message: Generate) -> bool:
        served = self._served_versions()
        if message.exact_version is not None:
            return message.exact_version in served
        if message.min_version is None:
            return self._journaled.newest_weights() is not None
        return any(version >= message.min_version for version in served)

    def _served_versions(self) -> set[int]:
        """Known versions that an instance serves."""
        known = self._journaled.state.versions.known
        return {
            instance.version
            for instance in self._instances.values()
            if instance.version in known and known[instance.version].root == instance.root
        }
