"""Reports every restart to the controller, so its report can name actor and cause.

Owns the sending, in the background and bounded: a supervisor never waits for it.
"""

import asyncio
import logging

from gleaner.actors.names import CONTROLLER
from gleaner.actors.protocol.cluster import RestartSeen
from gleaner.supervisor import ActorSystem, AskFailed, Done, Restarted

DEADLINE_S = 30.0  # the controller itself may be the one that is being restarted
MAX_PENDING = 256  # reports under way; later ones are only in the log

log = logging.getLogger("nodeagent")


class RestartReporter:
    """Called by supervisors as `on_restart`."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._pending: set[asyncio.Task[None]] = set()

    def __call__(self, restarted: Restarted) -> None:
        log.warning("restart %d of %s: %s", restarted.restarts, restarted.name, restarted.cause)
        if len(self._pending) >= MAX_PENDING:
            return
        task = asyncio.get_running_loop().create_task(self._report(restarted))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    def close(self) -> None:
        """Cancel the reports under way."""
        for task in self._pending:
            task.cancel()

    async def _report(self, restarted: Restarted) -> None:
        life = restarted.restarts + 1
        # A child process has only its kind as name, which every host has.
        whole = "/" in restarted.name
        name = restarted.name if whole else f"{self._system.node}/{restarted.name}"
        seen = RestartSeen(actor=name, cause=restarted.cause, incarnation=life)
        try:
            await self._system.ask(CONTROLLER, seen, deadline_s=DEADLINE_S, expect=Done)
        except AskFailed as problem:
            log.info("could not report the restart of %s: %s", restarted.name, problem)
