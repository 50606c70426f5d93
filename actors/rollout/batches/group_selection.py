"""GroupSelection: decides which groups count, requests prompts, aborts the rest.

Owns the requests for prompts and the running aborts; `state.group_policy` makes the decisions,
`state.group_events` has their effects. All of it follows from the state: a restarted manager continues from
there. The controller gives the same prompts for the same groups, in every call and in every incarnation.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from gleaner.actors.names import CONTROLLER
from gleaner.actors.protocol.instances import Abort
from gleaner.actors.protocol.rollout import MorePrompts, PromptsAre
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.admission import unfit
from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.events import GroupsAdded
from gleaner.actors.rollout.state.group_events import (
    Selects,
    closings_of,
    decision_of,
    due_aborts,
    events_of,
    longer_decides,
    race_has_news,
)
from gleaner.actors.rollout.state.token_log import Batch
from gleaner.supervisor import AskFailed, Context

PROMPTS_DEADLINE_S = 60.0  # of one request: the controller may have to request the problems itself
PROMPTS_LATE_S = 120.0  # this long without the prompts of a refill is worth a line, again each time
RETRY_S = 0.2
UNFIT_AGAIN_S = 5.0  # after prompts that cannot be taken: a controller that checks them sends none
ABORT_AGAIN_S = 0.5  # an abort may be lost in transit
ABORT_LATE_S = 10.0
RACE_S = 0.1  # between two looks at the responses of a race that still run


class GroupSelection:
    """See the module. `act` is called with what an event of selection changed, after its commit."""

    def __init__(
        self,
        ctx: Context,
        journaled: JournaledState,
        instances: Instances,
        max_prompt_tokens: int,
        act: Callable[[Effects], None],
    ) -> None:
        self._ctx, self._journaled, self._instances = ctx, journaled, instances
        self._max_prompt_tokens, self._act = max_prompt_tokens, act
        self._asking: set[str] = set()  # batches for which prompts are requested
        self._aborting: set[str] = set()  # instances with aborts in progress
        self._looked_s: dict[str, float] = {}  # when all groups of a batch were looked at last
        self._never = asyncio.Event()

    def start(self) -> None:
        """Continue where the last incarnation was."""
        for batch in list(self._journaled.state.log.batches.values()):
            self.look(batch)

    def look(self, batch: Batch, touched: Collection[int] | None = None) -> None:
        """Decide again: a group was completed or added, or the state was restored. touched: the groups of a
        race in which a response ended, none of them if a verdict is there; None: any."""
        if touched is None:
            self._looked_s[batch.name] = self._ctx.turn_time()
        self._close(batch, touched)
        if touched is None or race_has_news(batch, touched):  # else only bounds are higher: `frame_arrived`
            self._decide(batch, touched)

    def _close(self, batch: Batch, touched: Collection[int] | None) -> bool:
        """Close what groups can be closed. Returns whether there were any."""
        if (closings := closings_of(batch, touched)) is None:
            return False
        self._enter(batch, closings)
        return True

    def _decide(self, batch: Batch, touched: Collection[int] | None) -> None:
        decision = decision_of(batch, touched)
        if events := events_of(batch.name, decision):
            self._enter(batch, *events)
        if decision.add and batch.name not in self._asking:
            self._asking.add(batch.name)
            self._ctx.background(self._refill(batch), f"prompts for {batch.name}")

    def frame_arrived(self) -> None:
        """Decide the races again, at most every `RACE_S`: responses that still run are longer by now."""
        now_s = self._ctx.turn_time()
        for batch in list(self._journaled.state.log.batches.values()):
            under_way = batch.submitted.race and len(batch.fates.kept) < batch.wanted
            if under_way and now_s - self._looked_s.get(batch.name, -RACE_S) >= RACE_S:
                self._looked_s[batch.name] = now_s
                closed, longer = self._close(batch, None), longer_decides(batch)
                if closed or longer:
                    self._decide(batch, ())

    def released(self, name: str) -> None:
        """The batch is open no more."""
        self._looked_s.pop(name, None)

    def _enter(self, batch: Batch, *events: Selects) -> None:
        changes, committed = self._journaled.enter(*events, flush=True)
        self._ctx.background(self._decided(changes, committed), f"groups of {batch.name}")

    async def _decided(self, changes: Sequence[Effects], committed: Awaitable[int]) -> None:
        await committed
        for change in changes:
            self._act(change)
        self.abort()

    # -- more prompts --

    async def _refill(self, batch: Batch) -> None:
        """Request prompts until the batch has what it needs, or has ended."""
        try:
            async with self._ctx.wait(
                "prompts of a refill", on=CONTROLLER, deadline_s=PROMPTS_LATE_S, go_on=True
            ) as wait:
                while self._open(batch) and (count := self._missing(batch)):
                    ask = MorePrompts(batch=batch.name, first=len(batch.groups), count=count)
                    try:
                        reply = await self._ctx.ask(
                            CONTROLLER, ask, deadline_s=PROMPTS_DEADLINE_S, expect=PromptsAre
                        )
                    except AskFailed as problem:
                        self._ctx.log.info("no prompts received yet: batch=%s: %s", batch.name, problem)
                        await asyncio.sleep(RETRY_S)
                        continue
                    if fault := self._fault(ask, reply):
                        self._ctx.log.warning("prompts rejected: batch=%s: %s", batch.name, fault)
                        await asyncio.sleep(UNFIT_AGAIN_S)
                        continue
                    wait.progress()
                    if self._open(batch):
                        added = GroupsAdded(batch=batch.name, first=ask.first, prompts=reply.prompts)
                        self._act(await self._journaled.record(added))
                        # the next completed groups may have arrived while prompts were requested
                        self.look(batch)
        finally:
            self._asking.discard(batch.name)

    def _missing(self, batch: Batch) -> int:
        """Prompts that it lacks."""
        missing = decision_of(batch, ()).add
        batch.race.to_pass = None  # the rest of this decision is not carried out: the next frame decides anew
        return missing

    def _fault(self, ask: MorePrompts, reply: PromptsAre) -> str | None:
        """Why these prompts cannot be taken, as text; None if they can."""
        if len(reply.prompts) != ask.count:
            return f"{ask.count} were asked for, {len(reply.prompts)} came"
        fault = unfit(reply.prompts, self._max_prompt_tokens)
        return None if fault is None else f"a prompt {fault}"

    def _open(self, batch: Batch) -> bool:
        return self._journaled.state.log.batches.get(batch.name) is batch

    # -- aborts --

    def abort(self) -> None:
        """Send aborts to instances that decode requests that do not count."""
        state = self._journaled.state
        for name in due_aborts(state.log, state.streams):
            if name not in self._aborting and name in self._instances:
                self._aborting.add(name)
                self._ctx.background(self._abort(name), f"aborts at {name}")

    async def _abort(self, name: str) -> None:
        """Send aborts until the instance's stream has reported the end of each, or it is gone."""
        state = self._journaled.state
        try:
            async with self._ctx.wait(
                "aborted requests to end", on=name, deadline_s=ABORT_LATE_S, go_on=True
            ) as wait:
                while (instance := self._instances.get(name)) is not None:
                    async with instance.order:  # after the dispatches that are in transit to it
                        tickets = due_aborts(state.log, state.streams).get(name)
                    if not tickets:
                        return
                    await self._ctx.tell(instance.worker, Abort(tickets=tickets))
                    await wait.look(self._never, ABORT_AGAIN_S)
        finally:
            self._aborting.discard(name)
