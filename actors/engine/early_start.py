"""A server of an instance that has no weights yet, started while they are pulled, which is quicker.

Owns that one start. What it is started on is the model that comes, as soon as its manifest is on this host.
"""

from actors.engine.turn import AnyHost, AwaitedHost
from actors.rollout.messages import Weights
from actors.weights.messages import Fetched, WhatComes
from supervisor import AskFailed, Context

MANIFEST_DEADLINE_S = 60.0  # then the server is started as soon as its weights are here
START_LATE_S = 120.0


class EarlyStart:
    """See the module.

    Args:
        ctx: of the worker.
        node: this host; its TransferAgent is `<node>/transfer`.
        host: the worker's engine.
    """

    def __init__(self, ctx: Context, node: str, host: AnyHost) -> None:
        self._ctx, self._source, self._host = ctx, f"{node}/transfer", host
        self._begun = False
        self.seconds = 0.0
        """From the news of the first weights until the server ran; 0: it does not yet, or was not started."""

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
        self.seconds = self._ctx.now() - began_s
