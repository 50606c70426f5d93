"""Reactions: what follows from each committed event and each occurrence in RolloutManager.

| occurrence | method |
|---|---|
| an event is committed | `committed` |
| requests are sent to an instance | `sent` |
| a frame arrives from an instance, or is committed | `frame_arrived` |
| an instance serves other weights | `serving` |
| an instance takes no dispatch | `unresponsive` |
| requests kill every engine that takes them | `deadly` |
| the reward process gives a verdict | `verdict` |

Owns the order of the effects, which is the order of the lines here. The parts own the effects: each part
reports an occurrence by one of these methods, and knows none of the other parts that act on it.
"""

from typing import Protocol

from gleaner.actors.rollout.batches.group_delivery import GroupReaders
from gleaner.actors.rollout.batches.group_selection import GroupSelection
from gleaner.actors.rollout.batches.scoring import Scoring
from gleaner.actors.rollout.batches.whole_batches import WholeBatches
from gleaner.actors.rollout.dispatch.dispatcher import Dispatcher
from gleaner.actors.rollout.dispatch.migration import Migration
from gleaner.actors.rollout.dispatch.quarantine import Quarantine
from gleaner.actors.rollout.fleet.drain import Drains
from gleaner.actors.rollout.fleet.instance_table import Instance, Instances
from gleaner.actors.rollout.fleet.membership import Membership
from gleaner.actors.rollout.fleet.overdue import OverdueWork
from gleaner.actors.rollout.fleet.step_metrics import StepMetrics
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.requests.deadlines import Deadlines
from gleaner.actors.rollout.requests.service import RequestService
from gleaner.actors.rollout.requests.version_gate import VersionGates
from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.events import SampleAgain, Scored
from gleaner.actors.rollout.state.group_policy import made_again
from gleaner.actors.rollout.state.request_log import RequestLog
from gleaner.supervisor import Context


class ReactingParts(Protocol):
    """The parts of the manager that act on an occurrence in another part."""

    dispatcher: Dispatcher
    migration: Migration
    quarantine: Quarantine
    step_metrics: StepMetrics
    overdue: OverdueWork
    members: Membership
    drains: Drains
    scoring: Scoring
    group_selection: GroupSelection
    group_readers: GroupReaders
    whole_batches: WholeBatches
    request_service: RequestService
    deadlines: Deadlines
    version_gates: VersionGates


class Reactions:
    """See the module. The parts get these methods when they are made: set `parts` before any is called."""

    parts: ReactingParts

    def __init__(self, ctx: Context, journaled: JournaledState, instances: Instances) -> None:
        self._ctx, self._journaled, self._instances = ctx, journaled, instances

    def committed(self, changes: Effects) -> None:
        """An event is in the journal, and the state has these changes."""
        parts, log = self.parts, self._journaled.state.log
        for name in changes.opened:
            if (opened := log.batches.get(name)) is not None:
                parts.scoring.opened(opened)  # its responses will need verdicts
        parts.dispatcher.note(changes)  # the balancer gets the load before the next placement
        parts.step_metrics.note(changes)  # times of the batch and of its instances, for the plan of a step
        parts.migration.note(changes)  # a moved request is queued again; loads changed
        raced: dict[str, set[int]] = {}
        for request in changes.finished:
            finished = log.requests.get(request)
            if finished is None:
                continue
            if log.batches[finished.batch].submitted.race:
                raced.setdefault(finished.batch, set()).add(finished.group)
            if log.batches[finished.batch].submitted.scored:
                parts.scoring.add(request)  # a sample of a group: it needs a verdict
            else:
                parts.request_service.finished(finished)  # a caller waits for the response
                parts.quarantine.forget(finished.id)  # it is no suspect any more
        for name, groups in raced.items():
            parts.group_selection.look(log.batches[name], groups)  # a group may be closed
        for name in changes.released:
            parts.scoring.released(name)  # no verdict of it is requested again
            parts.group_selection.released(name)
        if changes.dropped:
            parts.scoring.dropped(changes.dropped)  # their verdicts are not needed
        if changes.completed:
            for name in dict.fromkeys(batch for batch, _ in changes.completed):
                batch = log.batches.get(name)
                if batch is not None and batch.selects:
                    # before groups are handed out: it may drop some of them
                    parts.group_selection.look(batch, () if batch.submitted.race else None)
            parts.group_readers.look()  # the trainer may wait for these groups
        if changes.ended or changes.queued or changes.started:
            parts.dispatcher.wake()  # there is free capacity, or a request waits
            parts.drains.look()  # an instance that drains may hold nothing any more
        if changes.completed or changes.ended or changes.dropped:
            parts.whole_batches.look()  # it was the last group, or the last abort

    def sent(self, instance: Instance, logs: list[RequestLog]) -> None:
        """These requests were sent to this instance."""
        parts = self.parts
        parts.overdue.moved()  # requests found free capacity
        parts.step_metrics.sent(instance, logs)  # the instance has work from here on
        parts.migration.sent(logs)  # those that move have arrived, and rest now
        parts.deadlines.sent(logs)  # their time runs from the first dispatch on
        parts.quarantine.sent(logs)  # if the instance dies at once, they are suspects

    def frame_arrived(self, name: str) -> None:
        """A frame arrived from the instance, or is committed."""
        self._instances.answered(name, self._ctx.turn_time())  # it is not silent
        self.parts.group_selection.frame_arrived()  # the responses of a race are longer

    def serving(self) -> None:
        """An instance serves other weights than before, or serves again."""
        self.parts.version_gates.changed()  # requests wait for a version that an instance serves
        self.parts.migration.wake()  # it may take requests of others
        self.parts.group_readers.look()  # a taker may wait until its batch is served

    async def unresponsive(self, name: str, incarnation: int, cause: str) -> None:
        """The instance takes no dispatch."""
        await self.parts.members.lose(name, incarnation, cause)  # its requests go elsewhere

    async def deadly(self, requests: list[str]) -> None:
        """Every engine that took these requests died at once."""
        for request in requests:
            await self.parts.request_service.deadly(request)  # refused, and its prompt from now on
            self.parts.quarantine.forget(request)  # it is over

    async def verdict(self, event: Scored) -> None:
        """Record a verdict. If it does not judge the sample, that sample alone is generated again."""
        state = self._journaled.state
        log = state.log.requests.get(event.request)
        if log is not None:
            batch = state.log.batches[log.batch]
            if not log.due and made_again(event.status, log.again, batch.submitted.again):
                self._ctx.log.info("sample generated again: request=%s: %s", log.id, event.status)
                again = SampleAgain(request=log.id, why=event.status, detail=event.detail)
                self.committed(await self._journaled.record(again))
                return
        self.committed(await self._journaled.record(event))
