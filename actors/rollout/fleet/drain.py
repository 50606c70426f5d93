"""Drains: drain an instance and requeue its requests with their tokens.

Owns the drains in progress. An abort may be lost in transit and is repeated; only the instance's own stream
shows that it holds nothing."""

import asyncio
from dataclasses import dataclass, field

from gleaner.actors.protocol.instances import Abort, Withdrawn
from gleaner.actors.rollout.fleet.instance_table import Instance
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.supervisor import Context, Deadline, Deferred, Waiting

ABORT_AGAIN_S = 0.5
ABORT_LATE_S = 10.0  # beyond the grace; an instance that answers no abort for this long is worth a line


@dataclass(slots=True)
class _Withdrawal:
    deferred: Deferred
    aborted: set[int] = field(default_factory=set)


class Drains:
    """See the module."""

    def __init__(self, ctx: Context, journaled: JournaledState) -> None:
        self._ctx, self._journaled, self._state = ctx, journaled, journaled.state
        self._under_way: dict[str, _Withdrawal] = {}
        self._ended = asyncio.Event()

    def begin(self, instance: Instance, grace_s: float) -> Deferred:
        """Answered when the instance holds nothing; executing requests may finish within the grace."""
        earlier = self._under_way.get(instance.name)
        if earlier is not None:
            earlier.deferred.answer(Withdrawn(handed_over=len(earlier.aborted)))
        withdrawal = self._under_way[instance.name] = _Withdrawal(Deferred())
        self._ctx.background(self._run(instance, withdrawal, grace_s), f"withdraw {instance.name}")
        return withdrawal.deferred

    def call_off(self, instance: str) -> None:
        """Cancel the drain: the instance keeps its requests, except those already sent an abort."""
        withdrawal = self._under_way.pop(instance, None)
        if withdrawal is not None:
            withdrawal.deferred.answer(Withdrawn(handed_over=len(withdrawal.aborted)))
            self._ended.set()

    def look(self) -> None:
        """Requests have ended: answer for each instance that holds nothing any more."""
        self._ended.set()
        self._answer()

    def _answer(self) -> None:
        """Answer finished drains. Sets no event: drains that woke one another with each look would never
        rest."""
        for name, withdrawal in list(self._under_way.items()):
            stream = self._state.streams.get(name)
            if stream is None or stream.gone or not stream.held:
                del self._under_way[name]
                self._ctx.background(self._confirm(withdrawal), f"end of the drain of {name}")

    async def _confirm(self, withdrawal: _Withdrawal) -> None:
        """Answer when the last rows of the instance are in the journal: its host may end upon the answer."""
        await self._journaled.settled()
        withdrawal.deferred.answer(Withdrawn(handed_over=len(withdrawal.aborted)))

    async def _run(self, instance: Instance, withdrawal: _Withdrawal, grace_s: float) -> None:
        """Abort waiting requests at once and executing ones after the grace; repeat until the stream reports
        their end."""
        deadline = Deadline.after(grace_s, self._ctx.now())
        async with self._ctx.wait(
            "requests to end", on=instance.name, deadline_s=grace_s + ABORT_LATE_S, go_on=True
        ) as wait:
            await self._abort_until_ended(instance, withdrawal, deadline, wait)

    async def _abort_until_ended(
        self, instance: Instance, withdrawal: _Withdrawal, deadline: Deadline, wait: Waiting
    ) -> None:
        while True:
            self._answer()
            if self._under_way.get(instance.name) is not withdrawal:
                return
            stream = self._state.streams.alive(instance.name, instance.incarnation)
            live = stream.live() if stream is not None else {}
            late = deadline.passed(self._ctx.now())
            tickets = [number for number, ticket in live.items() if late or not ticket.started]
            withdrawal.aborted |= set(tickets)
            if tickets:
                await self._ctx.tell(instance.worker, Abort(tickets=tickets))
            self._ended.clear()
            left_s = deadline.left_s(self._ctx.now())
            await wait.look(self._ended, ABORT_AGAIN_S if late else min(ABORT_AGAIN_S, left_s))
