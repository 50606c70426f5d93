"""What an instance does for weights before they are loaded: its server is started while the first ones are
pulled, which is quicker; newer ones are made ready while the engine decodes.

Owns that one start. What a server is started on is the model that comes, as soon as its manifest is on this
host.
"""

from actors.engine.server_wire import LoadFailed
from actors.engine.turn import AnyHost, AwaitedHost
from actors.rollout.messages import Weights
from actors.weights.messages import Fetched, WhatComes
from supervisor import AskFailed, Context

MANIFEST_DEADLINE_S = 60.0  # then the server is started as soon as its weights are here
START_LATE_S = 120.0


class Preparing:
    """See the module.

    Args:
        ctx: of the worker.
        node: this host; its TransferAgent is `<node>/transfer`.
        host: the worker's engine.
    """

    def __init__(self, ctx: Context, node: str, host: AnyHost) -> None:
        self._ctx, self._source, self._host = ctx, f"{node}/transfer", host
        self._begun = False
        self.figures: dict[str, str | int | float] = {}
        """`engine_s`: from the news of the first weights until the server ran; nothing before that."""

    def begin(self, weights: Weights) -> None:
        """These are being fetched. Only the first call does something, and only for a server."""
        if not self._begun and isinstance(self._host, AwaitedHost):
            self._begun = True
            self._ctx.background(self._start(self._host, weights), "early start")

    async def _start(self, host: AwaitedHost, weights: Weights) -> None:
        began_s = self._ctx.now()
        question = WhatComes(version=weights.version, root=weights.root)
        try:
            model = await self._ctx.ask(
                self._source, question, deadline_s=MANIFEST_DEADLINE_S, expect=Fetched
            )
        except AskFailed as problem:
            self._ctx.log.info("the server waits for its weights: %s", problem)
            return
        async with self._ctx.wait(
            "its server to start", on=self._ctx.name, deadline_s=START_LATE_S, go_on=True
        ):
            await host.prepare(model)
        self.figures = {"engine_s": round(self._ctx.now() - began_s, 3)}

    async def stage(self, fetched: Fetched) -> None:
        """Have the engine make these ready. What goes wrong goes wrong again when it loads: told then."""
        try:
            if isinstance(self._host, AwaitedHost):
                await self._host.stage(fetched)
            else:
                await self._ctx.offload_aside(self._host.stage, fetched)
        except (LoadFailed, OSError, ValueError) as problem:
            self._ctx.log.info("weights %d were not staged: %s", fetched.version, problem)
