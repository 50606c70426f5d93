"""`Preparation`: work for weights before the load, by an instance.

The server is started while the first weights are pulled, which is quicker. Newer weights are staged while the
engine decodes. Owns that one start: the server starts with the model of the arriving weights as soon as their
manifest is on this host.
"""

from gleaner.actors.engine.servers.port import LoadFailed
from gleaner.actors.engine.worker.port import AnyHost, AwaitedHost
from gleaner.actors.protocol.rollout import Weights
from gleaner.actors.protocol.weights import Fetched, WhatComes
from gleaner.supervisor import AskFailed, Context

MANIFEST_DEADLINE_S = 60.0  # then the server is started as soon as its weights are here
START_LATE_S = 120.0


class Preparation:
    """Prepares weights for one engine.

    Args:
        ctx: of the worker.
        node: this host; its TransferAgent is `<node>/transfer`.
        host: the worker's engine.
    """

    def __init__(self, ctx: Context, node: str, host: AnyHost) -> None:
        self._ctx, self._source, self._host = ctx, f"{node}/transfer", host
        self._begun = False
        self.figures: dict[str, str | int | float] = {}
        """`engine_s`: from the announcement of the first weights until the server ran; empty before that."""

    def begin(self, weights: Weights) -> None:
        """These weights are being fetched. Only the first call has an effect, and only for a server."""
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
            self._ctx.log.info("early server start skipped: %s", problem)
            return
        async with self._ctx.wait(
            "its server to start", on=self._ctx.name, deadline_s=START_LATE_S, go_on=True
        ):
            await host.prepare(model)
        self.figures = {"engine_s": round(self._ctx.now() - began_s, 3)}

    async def stage(self, fetched: Fetched) -> None:
        """Have the engine stage these. An error occurs again at the load, and is reported then."""
        try:
            if isinstance(self._host, AwaitedHost):
                await self._host.stage(fetched)
            else:
                await self._ctx.offload_aside(self._host.stage, fetched)
        except (LoadFailed, OSError, ValueError) as problem:
            self._ctx.log.info("weights not staged: version=%d: %s", fetched.version, problem)
