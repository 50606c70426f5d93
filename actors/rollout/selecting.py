"""Selecting: which groups of a batch count is decided as they are completed, more prompts are asked for, and
what does not count is aborted where it is decoded.

Owns the asks for prompts and the aborts under way; the decisions are `sampling`'s, what they change is
`selection`'s. All of it follows from the state: a manager that was killed goes on from there. The controller
gives the same prompts for the same groups, however often it is asked, and by whichever of its incarnations.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from actors.rollout.books import Books
from actors.rollout.changes import Changes
from actors.rollout.events import GroupsAdded
from actors.rollout.instances import Instances
from actors.rollout.messages import Abort, MorePrompts, PromptsAre
from actors.rollout.selection import decision_of, due_aborts, events_of
from actors.rollout.token_log import Batch
from supervisor import AskFailed, Context

CONTROLLER = "training/controller"
PROMPTS_DEADLINE_S = 60.0  # of one ask: the controller may have to ask for the problems itself
PROMPTS_LATE_S = 120.0  # so long without the prompts of a refill is worth a line, again each time
RETRY_S = 0.2
ABORT_AGAIN_S = 0.5  # an abort may be lost on its way
ABORT_LATE_S = 10.0


class PromptTooLong(RuntimeError):
    """A drawn prompt that no engine takes; `str` says which setting."""


class Selecting:
    """See the module. `act` is called with what an event of selection changed, after its commit."""

    def __init__(
        self,
        ctx: Context,
        books: Books,
        instances: Instances,
        max_prompt_tokens: int,
        act: Callable[[Changes], None],
    ) -> None:
        self._ctx, self._books, self._instances = ctx, books, instances
        self._max_prompt_tokens, self._act = max_prompt_tokens, act
        self._asking: set[str] = set()  # batches for which prompts are asked
        self._aborting: set[str] = set()  # instances that are told to abort
        self._never = asyncio.Event()

    def start(self) -> None:
        """Go on where the last incarnation was."""
        for batch in list(self._books.state.log.batches.values()):
            self.look(batch)

    def look(self, batch: Batch) -> None:
        """A group was completed or added, or nobody knows what happened."""
        decision = decision_of(batch)
        if events := events_of(batch.name, decision):
            changes, committed = self._books.enter(*events)
            self._ctx.background(self._decided(changes, committed), f"groups of {batch.name}")
        if decision.add and batch.name not in self._asking:
            self._asking.add(batch.name)
            self._ctx.background(self._refill(batch), f"prompts for {batch.name}")

    async def _decided(self, changes: Sequence[Changes], committed: Awaitable[int]) -> None:
        await committed
        for change in changes:
            self._act(change)
        self.abort()

    # -- more prompts --

    async def _refill(self, batch: Batch) -> None:
        """Ask until the batch has what it needs, or has ended."""
        try:
            async with self._ctx.wait(
                "prompts of a refill", on=CONTROLLER, deadline_s=PROMPTS_LATE_S, go_on=True
            ) as wait:
                while self._open(batch) and (count := decision_of(batch).add):
                    ask = MorePrompts(batch=batch.name, first=len(batch.groups), count=count)
                    try:
                        reply = await self._ctx.ask(
                            CONTROLLER, ask, deadline_s=PROMPTS_DEADLINE_S, expect=PromptsAre
                        )
                    except AskFailed as problem:
                        self._ctx.log.info("no prompts for %s yet: %s", batch.name, problem)
                        await asyncio.sleep(RETRY_S)
                        continue
                    wait.progress()
                    await self._add(batch, ask, reply)
        finally:
            self._asking.discard(batch.name)

    async def _add(self, batch: Batch, ask: MorePrompts, reply: PromptsAre) -> None:
        longest = max((len(prompt.tokens) for prompt in reply.prompts), default=0)
        if longest > self._max_prompt_tokens:  # no engine would take it, again and again
            self._ctx.crash(
                PromptTooLong(
                    f"batch {batch.name}: a prompt has {longest} tokens, engine.max_prompt_tokens is "
                    f"{self._max_prompt_tokens}"
                )
            )
        elif self._open(batch):
            added = GroupsAdded(batch=batch.name, first=ask.first, prompts=reply.prompts)
            self._act(await self._books.record(added))

    def _open(self, batch: Batch) -> bool:
        return self._books.state.log.batches.get(batch.name) is batch

    # -- aborts --

    def abort(self) -> None:
        """Tell who decodes what does not count."""
        state = self._books.state
        for name in due_aborts(state.log, state.streams):
            if name not in self._aborting and name in self._instances:
                self._aborting.add(name)
                self._ctx.background(self._abort(name), f"aborts at {name}")

    async def _abort(self, name: str) -> None:
        """Until its stream has told the end of each, or it is gone."""
        state = self._books.state
        try:
            async with self._ctx.wait(
                "aborted requests to end", on=name, deadline_s=ABORT_LATE_S, go_on=True
            ) as wait:
                while (instance := self._instances.get(name)) is not None:
                    async with instance.order:  # behind the dispatches that are on their way to it
                        tickets = due_aborts(state.log, state.streams).get(name)
                    if not tickets:
                        return
                    await self._ctx.tell(instance.worker, Abort(tickets=tickets))
                    await wait.look(self._never, ABORT_AGAIN_S)
        finally:
            self._aborting.discard(name)
