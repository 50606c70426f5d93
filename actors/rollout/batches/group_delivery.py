"""GroupReaders: complete groups go to the trainer or to an evaluation.

Owns the takers that wait for groups of a batch. Handing out a group is an event like any other. A group that
was handed out before is read back from its shelf: its tokens are in memory no longer.
"""

from collections.abc import Callable, Sequence

from gleaner.actors.protocol.rollout import GroupOut, Groups, SampleOut, TakeGroups
from gleaner.actors.rollout.batches.cache_outlook import CacheOutlook
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.events import GroupsTaken
from gleaner.actors.rollout.state.token_log import Batch
from gleaner.supervisor import Context, Deadline, Deferred, Refused

MAX_WAIT_S = 86_400.0
"""Limit of one wait: a timer that never ends would be kept forever."""


class GroupReaders:
    """See the module. One taker per batch waits at a time; a later request replaces an earlier one. held:
    whether no group may be handed out for the first time now. on_handed_out: called with a batch and its
    groups that a taker gets. outlook: whether half of the engines would do."""

    def __init__(
        self,
        ctx: Context,
        journaled: JournaledState,
        instances: Instances,
        held: Callable[[], bool],
        outlook: CacheOutlook,
        on_handed_out: Callable[[str, Sequence[int]], None] = lambda batch, groups: None,
    ) -> None:
        self._ctx, self._journaled, self._instances, self._held = ctx, journaled, instances, held
        self._outlook, self._on_handed_out = outlook, on_handed_out
        self._waiting: dict[str, tuple[Deadline, TakeGroups, Deferred]] = {}
        self.read_back = 0  # groups that were handed out again
        self._seen: dict[str, int] = {}  # verdicts of the batch at the last look for its waiting taker

    def add(self, message: TakeGroups) -> Deferred:
        """Answer when the conditions of the request hold (see TakeGroups). Raises Refused."""
        if not message.wait_s >= 0:
            raise Refused(f"batch {message.batch}: wait_s is {message.wait_s}, expected a number from 0 up")
        until = Deadline.after(min(message.wait_s, MAX_WAIT_S), self._ctx.now())
        deferred = Deferred()
        self._waiting[message.batch] = (until, message, deferred)
        self._seen.pop(message.batch, None)
        return deferred

    def look(self) -> None:
        """Answer the takers whose conditions hold now."""
        for name, (until, ask, deferred) in list(self._waiting.items()):
            batch = self._journaled.state.log.batches.get(name)
            if batch is None:
                self._forget(name)
                deferred.answer(Refused(f"batch {name} is not open any more"))
                continue
            held = self._held()
            over = until.passed(self._ctx.now()) or (ask.until_served and self._served(batch))
            if (held or self._seen.get(name) == batch.verdicts) and not over:
                continue
            self._seen[name] = batch.verdicts
            over = over or (ask.ended is not None and self._outlook.ended(batch) >= ask.ended)
            have = _had(batch, ask)
            ready = batch.due_but(have)
            if held:
                ready = [group for group in ready if batch.delivered(group)]
            left = batch.wanted - len(have)
            news = ask.dropped is not None and len(batch.fates.dropped) > ask.dropped
            if len(ready) >= min(ask.min_groups, left) or news or over:
                self._forget(name)
                self._ctx.background(self._hand_out(batch, ask, ready, deferred), "hand out")

    def _served(self, batch: Batch) -> int:
        """Number of preemptible instances that work on the batch."""
        return self._instances.serving("preemptible", batch.submitted)

    def _forget(self, batch: str) -> None:
        del self._waiting[batch]
        self._seen.pop(batch, None)

    async def _hand_out(self, batch: Batch, ask: TakeGroups, ready: list[int], deferred: Deferred) -> None:
        groups: dict[int, GroupOut] = {}
        if ready:
            groups = {group: group_out(batch, group) for group in ready if not batch.delivered(group)}
            taken = GroupsTaken(batch=batch.name, taker=ask.taker, groups=tuple(ready))
            await self._journaled.hand_out(taken, list(groups.values()))
            if again := [group for group in ready if group not in groups]:
                groups |= await self._journaled.shelves.get(batch.name, again)
                self.read_back += len(again)
            if len(groups) < len(ready):
                deferred.answer(Refused(f"batch {batch.name} is not open any more"))
                return
        self._on_handed_out(batch.name, ready)
        deferred.answer(
            Groups(
                groups=[groups[group] for group in ready],
                remaining=max(0, batch.wanted - len(_had(batch, ask)) - len(ready)),
                remote_serving=self._served(batch),
                dropped=sorted(batch.fates.dropped),
                collected=self._journaled.state.counters.tokens_collected,
                ended=0.0 if ask.ended is None else self._outlook.ended(batch),
                half_fits=ask.ended is not None and self._outlook.half_fits(batch),
            )
        )


def _had(batch: Batch, ask: TakeGroups) -> set[int]:
    """The groups of the batch that the taker has; other numbers that it names are ignored."""
    return {group for group in ask.have if 0 <= group < len(batch.groups)}


def group_out(batch: Batch, group: int) -> GroupOut:
    """A group as it is handed out; its tokens are still held."""
    logs = batch.groups[group]
    return GroupOut(
        group=group,
        prompt=logs[0].prompt.tobytes(),
        samples=tuple(
            SampleOut(
                request=log.id,
                tokens=log.tokens_bytes(),
                logprobs=log.logprobs_bytes(),
                score=log.score,
                spans=tuple(log.spans),
            )
            for log in logs
        ),
    )
