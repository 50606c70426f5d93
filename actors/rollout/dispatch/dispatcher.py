"""Dispatcher: send waiting requests to the instances that the LoadBalancer names.

Owns the order of the batches, the load reports to the balancer and the dispatches in transit. Single requests
go first: a caller waits for the answer. Then batches of exactly one version: they can only be served until
there is a newer one. The others follow, the oldest first: the trainer waits for it. A dispatch is journaled
before it is sent. Each instance gets one dispatch at a time, in the order of its tickets, and a slow instance
delays no other."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gleaner.actors.names import BALANCER
from gleaner.actors.protocol.balancer import LoadChange, LoadChanged, Place, Placed
from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.actors.protocol.experts import ExpertsWanted
from gleaner.actors.protocol.instances import Dispatch, Work
from gleaner.actors.protocol.requests import BATCH
from gleaner.actors.rollout.dispatch.migration import Migration
from gleaner.actors.rollout.dispatch.quarantine import Quarantine
from gleaner.actors.rollout.dispatch.session_affinity import SessionAffinity
from gleaner.actors.rollout.fleet.instance_table import Instance, Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.events import Dispatched
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState
from gleaner.actors.rollout.state.token_log import Batch
from gleaner.supervisor import AskFailed, AskTimeout, Context, Deadline, Done, Refused, Unreachable

PLACE_DEADLINE_S = 5.0
DISPATCH_DEADLINE_S = 10.0  # an instance that takes no dispatch for this long is given up
LEAST_S = 1.0  # this much left of it is worth another ask, if this process was stalled meanwhile
RETRY_S = 0.1

GiveUp = Callable[[str, int, str], Awaitable[None]]
"""An instance, its incarnation, and why it is given up."""

OnSent = Callable[[Instance, list[RequestLog]], None]
"""These requests were sent to this instance."""


@dataclass(frozen=True, slots=True)
class PlacementConstraints:
    """What binds a request to an instance, beside the load: a move, its session, a suspicion."""

    migration: Migration
    sessions: SessionAffinity
    quarantine: Quarantine


class Dispatcher:
    """See the module; `run` it in the background, `wake` it when something changed."""

    def __init__(
        self,
        ctx: Context,
        journaled: JournaledState,
        instances: Instances,
        constraints: PlacementConstraints,
        on_sent: OnSent,
        give_up: GiveUp,
    ) -> None:
        self._ctx, self._journaled, self._instances = ctx, journaled, instances
        self._migration, self._sessions = constraints.migration, constraints.sessions
        self._quarantine = constraints.quarantine
        self._on_sent, self._give_up = on_sent, give_up
        self._load: list[LoadChange] = []
        self._changed = asyncio.Event()
        self._held_until_s = 0.0

    def hold(self, for_s: float) -> None:
        """Send nothing for `for_s` seconds; 0: send again."""
        self._held_until_s = self._ctx.now() + for_s
        self._ctx.background(self._wake_later(for_s), "end of a hold")

    async def _wake_later(self, for_s: float) -> None:
        await asyncio.sleep(for_s)
        self.wake()

    def wake(self) -> None:
        """Requests wait, or an instance has free capacity."""
        self._changed.set()

    def note(self, changes: Effects) -> None:
        """Requests started or ended: the balancer gets a report before the next placement."""
        self._load += [
            LoadChange(instance=name, incarnation=incarnation, started=1)
            for name, incarnation in changes.started
        ]
        self._load += [
            LoadChange(
                instance=ended.instance,
                incarnation=ended.incarnation,
                ended_executing=int(ended.was_executing),
                ended_pending=int(not ended.was_executing),
            )
            for ended in changes.ended
        ]

    def forget_load(self, instance: str) -> None:
        """The balancer gets this instance's load as a whole: drop the changes that led to it."""
        self._load = [change for change in self._load if change.instance != instance]

    async def run(self) -> None:
        """Dispatch waiting requests whenever something changed."""
        while True:
            await self._ctx.idle(self._changed)
            self._changed.clear()
            await self._report_load()
            await self._quarantine.look()
            if not self._journaled.state.log.waiting or self._ctx.now() < self._held_until_s:
                continue
            full: list[set[int]] = []  # no instance of these versions has free capacity
            waiting = self._waiting()
            while waiting:
                batches, roots = self._next(waiting)
                if not roots or any(roots.keys() <= versions for versions in full):
                    continue
                alone = self._quarantine.suspect(batches[0])
                if alone is not None:
                    await self._place_alone(alone, roots)
                elif not await self._place(batches, roots):
                    full.append(set(roots))

    def _waiting(self) -> deque[BatchSubmitted]:
        """The batches that have requests waiting, in the order in which they are served."""
        log = self._journaled.state.log
        batches = sorted((log.batches[name] for name in log.waits.batches()), key=_urgency)
        return deque(batch.submitted for batch in batches)

    def _next(self, waiting: deque[BatchSubmitted]) -> tuple[list[str], dict[int, bytes]]:
        """The first waiting batch, with the versions that may make its requests. Single requests behind it
        join if all may go anywhere: a placement takes turns of two actors, whatever its size."""
        first = waiting.popleft()
        batches, roots = [first.batch], self._journaled.roots(first)
        if self._anywhere(first):
            while waiting and self._anywhere(waiting[0]) and self._journaled.roots(waiting[0]) == roots:
                batches.append(waiting.popleft().batch)
        return batches, roots

    def _anywhere(self, batch: BatchSubmitted) -> bool:
        """Whether it is a single request without a session, a target instance or a need to run alone."""
        if batch.scored or self._migration.arriving(batch.batch) or self._quarantine.suspect(batch.batch):
            return False
        return not any(self._sessions.of(one.id) for one in self._journaled.state.log.first(batch.batch, 1))

    async def _place(self, batches: list[str], roots: dict[int, bytes]) -> bool:
        """Send waiting requests while there is free capacity; False if there was not enough."""
        log = self._journaled.state.log
        count = sum(map(log.waits.count, batches))
        if not count:
            return True
        moved = [one for batch in batches for one in self._migration.arriving(batch)]
        targets = tuple(self._migration.moved_to(one) for one in moved)
        waiting = (one for batch in batches for one in log.first(batch, 1))
        preferred = self._sessions.preferred(next(waiting).id) if count == 1 else ""
        place = Place(roots=roots, count=count, moved=targets, preferred=preferred)
        try:
            placed = await self._ctx.ask(BALANCER, place, deadline_s=PLACE_DEADLINE_S, expect=Placed)
        except AskFailed as problem:
            self._ctx.log.warning("placement failed: %s", problem)
            self._changed.set()
            async with self._ctx.wait("a placement", on=BALANCER, deadline_s=PLACE_DEADLINE_S, go_on=True):
                await asyncio.sleep(RETRY_S)
            return False
        chosen: dict[str, list[RequestLog]] = {}
        among = {one.id for one in moved}
        first = (one for batch in batches for one in log.first(batch, len(placed.instances)))
        others = [one for one in first if one.id not in among]
        for one, name in zip([*moved, *others], placed.instances, strict=False):
            if one.state is RequestState.QUEUED:
                chosen.setdefault(name, []).append(one)
        for name, logs in chosen.items():
            instance = self._instances.get(name)
            version = instance.version if instance is not None else None
            # It may have gone, or serve other weights by now: then the next look places its requests
            # elsewhere.
            if instance is not None and version is not None and roots.get(version) == instance.root:
                self._send(instance, version, logs)
        await self._report_load()
        return sum(map(bool, placed.instances)) >= count

    async def _place_alone(self, log: RequestLog, roots: dict[int, bytes]) -> None:
        instance = await self._quarantine.room(log, roots)
        if instance is not None and instance.version is not None:
            self._send(instance, instance.version, [log])
            await self._report_load()

    def _send(self, instance: Instance, version: int, logs: list[RequestLog]) -> None:
        streams = self._journaled.state.streams
        if streams.alive(instance.name, instance.incarnation) is None or not logs:
            return
        first = streams.next_ticket(instance.name, instance.incarnation)
        tickets = tuple(range(first, first + len(logs)))
        work = [self._work(ticket, log) for ticket, log in zip(tickets, logs, strict=True)]
        _, committed = self._journaled.enter(
            Dispatched(
                instance=instance.name,
                incarnation=instance.incarnation,
                version=version,
                tickets=tickets,
                requests=tuple(log.id for log in logs),
                moved=sum(bool(self._migration.moved_to(log)) for log in logs),
            ),
            flush=True,
        )
        self._sessions.sent(instance.name, [log.id for log in logs])
        self._on_sent(instance, logs)
        for ticket, log in zip(tickets, logs, strict=True):
            self._ctx.note("dispatch", request=log.id, ticket=ticket, instance=instance.name)
        self._load.append(
            LoadChange(instance=instance.name, incarnation=instance.incarnation, dispatched=len(logs))
        )
        dispatch = Dispatch(epoch=instance.epoch, version=version, work=work)
        instance.sending = [task for task in instance.sending if not task.done()]
        delivery = self._deliver(instance, committed, dispatch)
        instance.sending.append(self._ctx.background(delivery, f"dispatch to {instance.name}"))

    def _work(self, ticket: int, log: RequestLog) -> Work:
        batch = self._journaled.state.log.batches[log.batch].submitted
        experts: ExpertsWanted | None = None
        if batch.experts:
            name = batch.batch.removeprefix(BATCH)
            attempt = log.attempts + 1
            experts = ExpertsWanted(follower=batch.experts, id=name, attempt=attempt, scores=batch.scores)
        return Work(
            ticket=ticket,
            prompt=log.prompt.tobytes(),
            prefix=log.tokens_bytes(),
            seed=log.seed,
            max_new_tokens=log.max_new_tokens,
            temperature=log.temperature,
            sampling=batch.sampling,
            experts=experts,
        )

    async def _deliver(self, instance: Instance, committed: Awaitable[int], dispatch: Dispatch) -> None:
        late_s = 2 * DISPATCH_DEADLINE_S
        async with (
            self._ctx.wait("a dispatch to be taken", on=instance.name, deadline_s=late_s, go_on=True),
            instance.order,
        ):
            await committed
            try:
                await self._hand_over(instance, dispatch)
            except (Refused, Unreachable) as problem:  # it registers again, or its end is reported
                self._ctx.log.info("dispatch not taken: instance=%s: %s", instance.name, problem)
            except AskFailed as problem:
                await self._give_up(instance.name, instance.incarnation, f"took no dispatch: {problem}")
            instance.heard_s = self._ctx.turn_time()  # its silence counts from here

    async def _hand_over(self, instance: Instance, dispatch: Dispatch) -> None:
        """Raises AskFailed; AskTimeout only if this process was never stalled meanwhile."""
        key = f"{dispatch.epoch}/{dispatch.work[0].ticket}"
        until = Deadline.after(DISPATCH_DEADLINE_S, self._ctx.turn_time())
        while True:
            left_s = until.left_s(self._ctx.turn_time())
            try:
                await self._ctx.ask(instance.worker, dispatch, deadline_s=left_s, expect=Done, key=key)
                return
            except AskTimeout:
                if until.left_s(self._ctx.turn_time()) < LEAST_S:
                    raise

    async def _report_load(self) -> None:
        if self._load:
            changes, self._load = self._load, []
            await self._ctx.tell(BALANCER, LoadChanged(changes=changes))


def _urgency(batch: Batch) -> tuple[bool, bool, int, int]:
    submitted = batch.submitted
    return submitted.scored, submitted.min_version is not None, submitted.version, batch.number
