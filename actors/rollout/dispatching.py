"""Dispatch: requests that wait go to the instances that the LoadBalancer names.

Owns the order of the batches, the reports of load to the balancer and the dispatches on their way. Batches of
exactly one version go first: only as long as there is no newer one can anybody serve them. The others follow,
the oldest in front: the trainer waits for it. A dispatch is journaled before it is sent; one at a time goes
to each instance, in the order of its tickets, and a slow instance holds up nobody else."""

import asyncio
from collections.abc import Awaitable, Callable

from actors.rollout.books import Books
from actors.rollout.changes import Changes
from actors.rollout.events import BatchSubmitted, Dispatched
from actors.rollout.instances import Instance, Instances
from actors.rollout.load_balancer import LoadChange, LoadChanged, Place, Placed
from actors.rollout.messages import Dispatch, Work
from actors.rollout.token_log import RequestLog, RequestState
from supervisor import AskFailed, Context, Done, Refused, Unreachable

BALANCER = "rollout/balancer"
PLACE_DEADLINE_S = 5.0
DISPATCH_DEADLINE_S = 10.0  # an instance that takes no dispatch for so long is given up
RETRY_S = 0.1

GiveUp = Callable[[str, int, str], Awaitable[None]]
"""An instance, its incarnation, and why it is given up."""

OnSent = Callable[[Instance, list[RequestLog]], None]
"""These requests are on their way to this instance."""

MovedTo = Callable[[RequestLog], str]
"""The instance that a request was taken from another one for; "" for none."""


class Dispatching:
    """See the module; `run` it in the background, `wake` it when something changed."""

    def __init__(
        self,
        ctx: Context,
        books: Books,
        instances: Instances,
        on_sent: OnSent,
        give_up: GiveUp,
        moved_to: MovedTo,
    ) -> None:
        self._ctx, self._books, self._instances = ctx, books, instances
        self._on_sent, self._give_up, self._moved_to = on_sent, give_up, moved_to
        self._load: list[LoadChange] = []
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Requests wait, or an instance has room."""
        self._changed.set()

    def note(self, changes: Changes) -> None:
        """Requests began or ended: the balancer is told before it is asked again."""
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
        """The balancer gets this instance's load as a whole: what led to it must not be reported again."""
        self._load = [change for change in self._load if change.instance != instance]

    async def run(self) -> None:
        """Dispatch what waits, whenever something changed."""
        while True:
            await self._ctx.idle(self._changed)
            self._changed.clear()
            await self._report_load()
            if not self._books.state.log.waiting:
                continue
            full: list[set[int]] = []  # no instance of these versions takes any more
            for batch, waiting in self._waiting():
                roots = self._books.roots(batch)
                if not roots or any(roots.keys() <= versions for versions in full):
                    continue
                if not await self._place(waiting, roots):
                    full.append(set(roots))

    def _waiting(self) -> list[tuple[BatchSubmitted, list[RequestLog]]]:
        """What waits, by batch, in the order in which it is served."""
        waiting: dict[str, list[RequestLog]] = {}
        for log in self._books.state.log.queued():
            waiting.setdefault(log.batch, []).append(log)
        batches = [
            batch.submitted for name, batch in self._books.state.log.batches.items() if name in waiting
        ]
        batches.sort(key=lambda batch: (batch.min_version is not None, batch.version))  # stable
        return [(batch, waiting[batch.batch]) for batch in batches]

    async def _place(self, waiting: list[RequestLog], roots: dict[int, bytes]) -> bool:
        """Send them where there is room; False where there was not enough."""
        moved = [log for log in waiting if self._moved_to(log)]
        targets = tuple(self._moved_to(log) for log in moved)
        if moved:
            waiting = [*moved, *(log for log in waiting if not self._moved_to(log))]
        place = Place(roots=roots, count=len(waiting), moved=targets)
        try:
            placed = await self._ctx.ask(BALANCER, place, deadline_s=PLACE_DEADLINE_S, expect=Placed)
        except AskFailed as problem:
            self._ctx.log.warning("no placement: %s", problem)
            self._changed.set()
            async with self._ctx.wait("a placement", on=BALANCER, deadline_s=PLACE_DEADLINE_S, go_on=True):
                await asyncio.sleep(RETRY_S)
            return False
        chosen: dict[str, list[RequestLog]] = {}
        for log, name in zip(waiting, placed.instances, strict=False):
            chosen.setdefault(name, []).append(log)
        for name, logs in chosen.items():
            instance = self._instances.get(name)
            version = instance.version if instance is not None else None
            # It may have gone, or serve others by now: then the next look finds its requests another place.
            if instance is not None and version is not None and roots.get(version) == instance.root:
                still = [log for log in logs if log.state is RequestState.QUEUED]
                self._send(instance, version, still)
        await self._report_load()
        return sum(map(bool, placed.instances)) == len(waiting)

    def _send(self, instance: Instance, version: int, logs: list[RequestLog]) -> None:
        streams = self._books.state.streams
        if streams.alive(instance.name, instance.incarnation) is None or not logs:
            return
        first = streams.next_ticket(instance.name, instance.incarnation)
        tickets = tuple(range(first, first + len(logs)))
        work = [_work(ticket, log) for ticket, log in zip(tickets, logs, strict=True)]
        _, committed = self._books.enter(
            Dispatched(
                instance=instance.name,
                incarnation=instance.incarnation,
                version=version,
                tickets=tickets,
                requests=tuple(log.id for log in logs),
                moved=sum(bool(self._moved_to(log)) for log in logs),
            )
        )
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

    async def _deliver(self, instance: Instance, committed: Awaitable[int], dispatch: Dispatch) -> None:
        late_s = 2 * DISPATCH_DEADLINE_S
        async with (
            self._ctx.wait("a dispatch to be taken", on=instance.name, deadline_s=late_s, go_on=True),
            instance.order,
        ):
            await committed
            try:
                await self._ctx.ask(instance.worker, dispatch, deadline_s=DISPATCH_DEADLINE_S, expect=Done)
            except (Refused, Unreachable) as problem:  # it registers again, or its end is told
                self._ctx.log.info("%s took no dispatch: %s", instance.name, problem)
            except AskFailed as problem:
                await self._give_up(instance.name, instance.incarnation, f"took no dispatch: {problem}")

    async def _report_load(self) -> None:
        if self._load:
            changes, self._load = self._load, []
            await self._ctx.tell(BALANCER, LoadChanged(changes=changes))


def _work(ticket: int, log: RequestLog) -> Work:
    return Work(
        ticket=ticket,
        prompt=log.prompt.tobytes(),
        prefix=log.tokens_bytes(),
        seed=log.seed,
        max_new_tokens=log.max_new_tokens,
        temperature=log.temperature,
    )
