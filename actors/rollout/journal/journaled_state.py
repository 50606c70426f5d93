"""JournaledState: rollout state, weights of open batches, and the journal of both.

Owns the order: an event changes the state first and is committed after that, in the same order for all. A
component that acts on an event visibly awaits its commit first. At its release the audit trail of a batch
goes into a stream of its own (`ledger`); groups that are handed out are stored before that
(`delivered_groups`). Snapshots bound the replay: one at each release, and one after `journal_events` events
without any, or after frames of `journal_bytes` and no fewer than a snapshot itself takes. So writing
snapshots never costs more than twice what the frames cost.
"""

import asyncio
from collections.abc import Awaitable

from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.actors.protocol.rollout import BatchLedger, GroupOut, RequestLedger, Weights
from gleaner.actors.rollout.journal.delivered_groups import DeliveredGroups
from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.events import (
    BatchReleased,
    FrameLogged,
    GroupsTaken,
    RolloutSnapshot,
    VersionFailed,
    VersionPublished,
)
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.rollout.state.token_log import Batch
from gleaner.supervisor import Journal, Message
from gleaner.transport.token_frame import ROW_BYTES

JOURNAL_BYTES = 64 << 20
"""As `limits.journal_bytes`."""
HELD_BYTES = 8
"""Bytes of a token in a snapshot: itself and its log-prob."""


class BatchWeights(Message, frozen=True):
    """Journaled beside `BatchSubmitted`: the newest weights then; those of a batch of exactly one version."""

    batch: str
    weights: Weights
    shelf: int | None = None


class ManagerSnapshot(Message, frozen=True):
    """Journaled when a batch is released: all that is open."""

    rollout: RolloutSnapshot
    weights: dict[str, Weights]
    shelves: dict[str, int] = {}


class JournaledState:
    """See the module. Read `state` and `weights` (by batch) freely."""

    def __init__(
        self, journal: Journal, ledger: Journal, journal_events: int, journal_bytes: int = JOURNAL_BYTES
    ) -> None:
        self.state = RolloutState()
        self.weights: dict[str, Weights] = {}
        self._journal = journal
        self._ledger = ledger
        self._journal_events = journal_events
        self._journal_bytes = journal_bytes
        self._since_snapshot = 0
        self._bytes_since = 0  # of frames
        self._newest: Awaitable[int] | None = None  # the commit of all that was entered so far
        self.shelves = DeliveredGroups(journal)

    async def replay(self) -> None:
        """Restore what the last incarnation had committed."""
        async for event in self._journal.replay():
            if isinstance(event, ManagerSnapshot):
                self.state.apply(event.rollout)
                self.weights = dict(event.weights)
                self.shelves.restore(event.shelves, self._handed_out())
            elif isinstance(event, BatchWeights):
                self.weights[event.batch] = event.weights
                if event.batch in self._handed_out():
                    self.shelves.assign(event.batch, event.shelf)
            else:
                self.state.apply(event)

    def enter(self, *events: Message, flush: bool = False) -> tuple[list[Effects], Awaitable[int]]:
        """Apply now, commit with the next group. Returns what changed, and the commit to await. If a request
        has ended, or with `flush`, that group is committed without further delay: a step waits for it."""
        changes = [self.state.apply(event) for event in events]
        flush = flush or any(one.finished for one in changes)
        committed = self._journal.append_soon(*events, flush=flush)
        self._since_snapshot += len(events)
        self._bytes_since += sum(ROW_BYTES * len(one.flags) for one in events if isinstance(one, FrameLogged))
        if self._since_snapshot >= self._journal_events or self._full():
            may_go_unheard(committed)
            # commits are in order: what was appended before is committed with it
            committed = self._snapshot(flush=flush)
        self._newest = committed
        return changes, committed

    def _full(self) -> bool:
        if self._bytes_since < self._journal_bytes:
            return False
        return self._bytes_since >= HELD_BYTES * self.state.log.columns.held()

    async def settled(self) -> None:
        """Wait until all that has changed the state so far is committed."""
        if self._newest is not None:
            await asyncio.shield(self._newest)

    async def record(self, event: Message) -> Effects:
        """Apply and commit; then callers may act upon it."""
        (changes,), committed = self.enter(event, flush=True)
        await committed
        return changes

    async def submit(self, batch: BatchSubmitted, weights: Weights) -> Effects:
        """Open a batch under its weights."""
        self.weights[batch.batch] = weights
        changes = self.state.apply(batch)
        commits: list[Awaitable[int]] = []
        shelf = self.shelves.assign(batch.batch, None) if batch.scored else None
        if shelf is not None:
            commits.append(self.shelves.empty(shelf))  # calls take effect in their order
        opened = BatchWeights(batch=batch.batch, weights=weights, shelf=shelf)
        commits.append(self._journal.append_soon(batch, opened, flush=True))
        await asyncio.gather(*commits)  # a full disk fails both
        return changes

    def _handed_out(self) -> list[str]:
        """The open batches whose groups a taker receives: single requests are answered whole."""
        return [name for name, batch in self.state.log.batches.items() if batch.submitted.scored]

    async def hand_out(self, event: GroupsTaken, groups: list[GroupOut]) -> None:
        """Record that these groups were taken. `groups`: the contents of those that are taken for the first
        time. They are in the journal no later than the event, which forgets their tokens."""
        put = [self.shelves.put(event.batch, groups)] if groups else []
        _changes, taken = self.enter(event, flush=True)
        await asyncio.gather(*put, taken)

    async def release(self, *batches: Batch) -> list[Effects]:
        """Write the audit trail of batches and forget them, in one commit. After the batch of a step or an
        evaluation the journal starts anew from a snapshot; single requests are too many and too small for
        that."""
        trail = self._ledger.append_soon(*map(ledger_of, batches))
        changes, released = self.enter(*(BatchReleased(batch=one.name) for one in batches))
        commits = [trail, released]
        for one in batches:
            self.weights.pop(one.name, None)
            shelf = self.shelves.numbers.pop(one.name, None)
            if shelf is not None:
                commits.append(self.shelves.empty(shelf))
        if any(one.submitted.scored for one in batches):
            commits.append(self._snapshot(flush=True))  # the manager handles no message meanwhile
        await asyncio.gather(*commits)  # a full disk fails all
        return changes

    def _snapshot(self, *, flush: bool = False) -> Awaitable[int]:
        self._since_snapshot = self._bytes_since = 0
        state = ManagerSnapshot(
            rollout=self.state.snapshot(), weights=dict(self.weights), shelves=dict(self.shelves.numbers)
        )
        return self._journal.snapshot_soon(state, flush=flush)

    async def publish(self, weights: Weights) -> None:
        """Record the newest version, and the versions that are lost with it. Committed on return."""
        event = VersionPublished(version=weights.version, root=weights.root, sources=weights.sources)
        if self.state.versions.newest != event:
            await self.record(event)

    async def fail(self, version: int, root: bytes, why: str) -> None:
        """Record that instances cannot load this version. Committed on return."""
        await self.record(VersionFailed(version=version, root=root, why=why))

    def newest_weights(self) -> Weights | None:
        """What an instance that joins now should serve."""
        newest = self.state.versions.newest
        if newest is None:  # a journal of an older program, and no batch since
            failed = self.state.versions.failed
            left = [weights for weights in self.weights.values() if weights.version not in failed]
            return max(left, key=lambda weights: weights.version, default=None)
        return Weights(version=newest.version, root=newest.root, sources=newest.sources)

    def roots(self, batch: BatchSubmitted) -> dict[int, bytes]:
        """The versions that may make tokens of this batch now, with their roots."""
        if batch.min_version is not None:
            return self.state.versions.roots(batch.min_version)
        weights = self.weights.get(batch.batch)
        return {} if weights is None else {weights.version: weights.root}


def ledger_of(batch: Batch) -> BatchLedger:
    """The audit trail of a batch in its present state."""
    return BatchLedger(
        batch=batch.name,
        version=batch.submitted.version,
        min_version=batch.submitted.min_version,
        requests=tuple(
            RequestLedger(
                request=log.id,
                count=len(log),
                crc=log.tokens_crc(),
                spans=tuple(log.spans),
                score=log.score,
                status=log.status,
                dropped=log.dropped,
            )
            for log in batch.requests()
        ),
    )


def may_go_unheard(commit: Awaitable[int]) -> asyncio.Future[int]:
    """Mark the commit's exception as retrieved: if no caller awaits the commit, a later one that is awaited
    fails as well."""
    future = asyncio.ensure_future(commit)
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future
