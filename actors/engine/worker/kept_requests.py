"""`KeptRequests`: requests that stay with their engine while its weights change.

The manager selects them before the next token. Owns that request to the manager. The engine is paused
meanwhile, and its stream is acknowledged to the last row first. So the manager has every token of the old
weights before it counts later ones as made by the newer weights. Without a reply, all requests end here and
are requeued, as without this feature.
"""

import asyncio

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.instances import KeepRequests, RequestsKept
from gleaner.configs.schema import Engine
from gleaner.supervisor import AskFailed, Context, WaitTimeout
from gleaner.transport.token_stream import StreamSender

KEEP_S = 5.0  # longer than a commit of the manager; beyond it a requeue is quicker
LOOK_S = 0.005  # between two checks whether the stream is acknowledged


class KeptRequests:
    """Asks the manager which requests stay.

    Args:
        ctx: of the worker, whose name the manager knows.
        engine: section `engine`.
        sender: its token stream.
        preemptible: whether this instance may keep anything.
    """

    def __init__(self, ctx: Context, engine: Engine, sender: StreamSender, preemptible: bool) -> None:
        self._ctx, self._sender = ctx, sender
        self.wanted = preemptible and engine.in_flight == "kept"
        """Whether its engine should keep its executing requests."""
        self._kind = engine.kind
        self._cannot = False
        self._kept = 0

    async def to_end(self, kept: list[int] | None, version: int, root: bytes) -> list[int]:
        """The tickets, of those kept by the engine for these weights, that must end. `kept` None: the engine
        keeps nothing, which is logged once."""
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
                while self._sender.unacknowledged:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(LOOK_S)
                kept = await self._ctx.ask(MANAGER, ask, deadline_s=KEEP_S, expect=RequestsKept)
        except (AskFailed, WaitTimeout) as problem:
            self._ctx.log.info("requests requeued: %d: %s", len(tickets), problem)
            return set()
        return set(kept.tickets)

    @property
    def figures(self) -> dict[str, str | int | float]:
        """For the operator: the number of requests kept across weight changes, if wanted."""
        return {"kept": "never: its engine cannot" if self._cannot else self._kept} if self.wanted else {}
