"""Requests that stay with their engine while its weights change: the manager says which may, before a token.

Owns that question. Its engine stands still meanwhile, and its stream is acknowledged to the last row first:
so the manager has every token of the weights before when it counts those to come as made by the newer ones.
Where nobody answers, all of them end here and go on where there is room, as without it.
"""

import asyncio

from actors.rollout.instance_messages import KeepRequests, RequestsKept
from configs.schema import Config
from supervisor import AskFailed, Context, WaitTimeout
from transport.token_stream import StreamSender

MANAGER = "rollout/manager"
KEEP_S = 5.0  # longer than a commit of the manager; then it is quicker to hand them over
LOOK_S = 0.005  # between two looks whether the stream is acknowledged


class Keeping:
    """See the module.

    Args:
        ctx: of the worker, whose name the manager knows.
        config: resolved settings.
        sender: its token stream.
        preemptible: whether this instance may keep anything.
    """

    def __init__(self, ctx: Context, config: Config, sender: StreamSender, preemptible: bool) -> None:
        self._ctx, self._sender = ctx, sender
        self.wanted = preemptible and config.engine.in_flight == "kept"
        """Whether its engine is to keep what it executes."""
        self._kind = config.engine.kind
        self._cannot = False
        self._kept = 0

    async def to_end(self, kept: list[int] | None, version: int, root: bytes) -> list[int]:
        """Of the tickets that its engine has kept for these weights those that must end. `kept` None: it
        keeps nothing, which is said once."""
        if kept is None:
            if not self._cannot:
                self._ctx.log.warning(
                    "engine.in_flight is kept; an engine of kind %s keeps no requests, they are handed over",
                    self._kind,
                )
            self._cannot = True
            return []
        may = await self._may_stay(kept, version, root) if kept else set[int]()
        self._kept += len(may)
        return [ticket for ticket in kept if ticket not in may]

    async def _may_stay(self, tickets: list[int], version: int, root: bytes) -> set[int]:
        ask = KeepRequests(
            instance=self._ctx.name,
            incarnation=self._ctx.incarnation,
            version=version,
            root=root,
            tickets=tickets,
        )
        try:
            async with self._ctx.wait("leave to keep its requests", on=MANAGER, deadline_s=KEEP_S):
                while self._sender.unacknowledged:  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(LOOK_S)
                kept = await self._ctx.ask(MANAGER, ask, deadline_s=KEEP_S, expect=RequestsKept)
        except (AskFailed, WaitTimeout) as problem:
            self._ctx.log.info("%d requests are handed over: %s", len(tickets), problem)
            return set()
        return set(kept.tickets)

    @property
    def figures(self) -> dict[str, str | int | float]:
        """For its operator: requests that stayed here while the weights changed, where that is wanted."""
        return {"kept": "never: its engine cannot" if self._cannot else self._kept} if self.wanted else {}
