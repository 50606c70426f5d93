"""EngineLauncher: launches the engine of a host anew with another width, and looks after it on trial.

Owns the exchange of the child in its supervisor. On trial it is a temporary child: its end is no failure of
the host, and `width_trial` decides what follows. Requests that it had go on elsewhere from their last tokens,
as with every instance that leaves.
"""

import asyncio
import logging
from collections.abc import Callable

from gleaner.nodeagent.launch import Launch
from gleaner.nodeagent.width_trial import TRIES, WidthTrial
from gleaner.supervisor import ChildSpec, Supervisor, SupervisorFailed

ENGINE = "engine"

log = logging.getLogger("nodeagent")


class EngineLauncher:
    """See the module.

    Args:
        tree: of the host's children.
        trial: of its engine.
        spec_of: the child, for a launch.
    """

    def __init__(self, tree: Supervisor, trial: WidthTrial, spec_of: Callable[[Launch], ChildSpec]) -> None:
        self._tree, self.trial, self._spec_of = tree, trial, spec_of

    async def ordered(self, width: int) -> None:
        """A plan has this width for this host; 0: none."""
        before = self.trial.width
        if self.trial.ordered(width, self._now_s()):
            log.info("engine relaunched: width %d after %d", self.trial.width, before)
            await self._launch()

    async def look(self) -> None:
        """Look after an engine that is on trial."""
        if not self.trial.on_trial:
            return
        width, runs = self.trial.width, self._tree.process(ENGINE) is not None
        verdict = self.trial.look(runs=runs, now_s=self._now_s())
        if verdict == "again":
            log.info("engine of width %d ended on trial: once more", width)
            await self._launch()
        elif verdict == "back":
            log.error(
                "engine of width %d ended %d times on trial: back to width %d", width, TRIES, self.trial.width
            )
            await self._launch()
        elif verdict == "passed" and not await self._tree.keep_child(ENGINE):
            await self._launch()  # it ended in this moment

    async def _launch(self) -> None:
        await self._tree.remove(ENGINE)
        try:
            await self._tree.add(self._spec_of(self.trial.launch))
        except SupervisorFailed as problem:
            log.warning("%s", problem)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
