"""Migration: request moves to balance load (RLBoost, Algorithm 2, lines 13-27).

Owns when the LoadBalancer is asked, the moves in progress, and how long a request rests after one. The
balancer decides what moves where (`rebalancer`). A move is an abort at the source, whose stream brings the
last tokens and reports that the request has ended there. The request is then dispatched to the target like
any other that waits, with all of its tokens, so none is generated twice. Nothing of this is durable: after a
killed manager, a lost abort or a dead target, a request goes on where it is, or wherever there is free
capacity.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gleaner.actors.names import BALANCER
from gleaner.actors.protocol.balancer import Holding, MoveOrder, Moves, Rebalance
from gleaner.actors.protocol.instances import Abort
from gleaner.actors.rollout.dispatch.remaining_length import Codes, RemainingLengths, codes_of
from gleaner.actors.rollout.fleet.instance_table import Instance, Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState, lengths
from gleaner.supervisor import AskFailed, Context

DECISION_DEADLINE_S = 5.0
AGAIN_S = 0.5
"""Seconds between a round that moved something and the next one: pending requests go one by one."""
ROUND_S = 2.0
"""Seconds between a round that found nothing and the next one: loads change by a request at a time."""
LOOK_S = 10.0
"""Seconds until a round without any change of load, while there is any: contexts grow and rests end."""
REST_S = 30.0
"""A moved request stays where it is for this many seconds, whatever the loads: the effect of a move shows
only by then, and no request is moved to and fro."""
PENDING_S = 5.0
"""A request that waits for longer at an instance with a free slot waits for free capacity in its cache."""
MOVE_S = 30.0
"""A move that is not done by then is forgotten: its abort was lost, or its source hangs."""


@dataclass(slots=True)
class _Order:
    """A move of one request. `taken`: it has left its source."""

    source: str
    target: str
    until_s: float
    taken: bool = False


class Migration:
    """See the module; `run` it in the background, `wake` it when load changed."""

    def __init__(self, ctx: Context, journaled: JournaledState, instances: Instances) -> None:
        self._ctx, self._journaled, self._instances = ctx, journaled, instances
        self.lengths = RemainingLengths()
        """Of the responses that ended."""
        self._orders: dict[str, _Order] = {}
        self._moved_s: dict[str, float] = {}
        self._pending_s: dict[str, float] = {}
        self._rounds_over: set[str] = set()  # short rounds whose edge is known, by batch
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """An instance was added, or serves other weights."""
        self._changed.set()

    def note(self, changes: Effects) -> None:
        """Record the changes in requests."""
        requests, batches = self._journaled.state.log.requests, self._journaled.state.log.batches
        for name in changes.finished:
            log = requests.get(name)
            if log is not None:
                kind = batches[log.batch].submitted.kind
                self.lengths.finished(len(log), log.max_new_tokens, kind)
            self._orders.pop(name, None)
        for name in changes.queued:
            order = self._orders.get(name)
            if order is not None:
                order.taken = True
        if changes.ended or changes.started:
            self._changed.set()

    def moved_to(self, log: RequestLog) -> str:
        """The instance that a waiting request is being moved to; "" if none."""
        order = self._orders.get(log.id)
        return order.target if order is not None and order.taken else ""

    def arriving(self, batch: str) -> list[RequestLog]:
        """The requests of this batch that have left their instances for others and wait; the longest prefix
        goes first."""
        taken = [name for name, order in self._orders.items() if order.taken]
        requests = map(self._journaled.state.log.requests.get, taken)
        waiting = [
            log
            for log in requests
            if log is not None and log.batch == batch and log.state is RequestState.QUEUED
        ]
        waiting.sort(key=lambda log: (-len(log), log.group, log.sample, log.id))
        return waiting

    def sent(self, logs: list[RequestLog]) -> None:
        """These requests were sent to an instance."""
        now = self._ctx.now()
        for log in logs:
            self._pending_s[log.id] = now
            if self._orders.pop(log.id, None) is not None:
                self._moved_s[log.id] = now

    async def run(self) -> None:
        """Run a round whenever load changed, but not too often."""
        while True:
            await self._ctx.idle(self._changed, LOOK_S if self._journaled.state.log.requests else None)
            self._changed.clear()
            moved = await self._round()
            await self._ctx.idle(asyncio.Event(), AGAIN_S if moved else ROUND_S)

    async def _round(self) -> bool:
        """Run one round; return whether anything moves."""
        self._prune()
        self._note_edges()
        batches = self._journaled.state.log.batches
        gates = {name: number for number, name in enumerate(batches)}
        kinds = codes_of([batch.submitted.kind for batch in batches.values()])
        closed = self._waiting_batches()
        under_way = {name for order in self._orders.values() for name in (order.source, order.target)}
        holdings = [self._holding(instance, gates, kinds, closed, under_way) for instance in self._serving()]
        if len(holdings) < 2 or not any(1 in holding.movable for holding in holdings):
            return False
        roots = [self._journaled.roots(batch.submitted) for batch in batches.values()]
        ask = Rebalance(gates=roots, holdings=holdings)
        try:
            answer = await self._ctx.ask(BALANCER, ask, deadline_s=DECISION_DEADLINE_S, expect=Moves)
        except AskFailed as problem:
            self._ctx.log.info("no decision on moves: %s", problem)
            return False
        for move in answer.moves:
            await self._begin(move)
        return bool(answer.moves)

    async def _begin(self, move: MoveOrder) -> None:
        """Take the requests from their instance; `note` records when they have left it."""
        instance = self._instances.get(move.source)
        stream = self._journaled.state.streams.alive(move.source, move.source_incarnation)
        if instance is None or stream is None or instance.incarnation != move.source_incarnation:
            return
        live = stream.live()
        tickets = [ticket for ticket in move.tickets if ticket in live]
        until_s = self._ctx.now() + MOVE_S
        for ticket in tickets:
            self._orders[live[ticket].request] = _Order(move.source, move.target, until_s)
        what = "executing" if move.executing else "pending"
        self._ctx.log.info(
            "moving requests: count=%d state=%s from=%s to=%s", len(tickets), what, move.source, move.target
        )
        if tickets:
            await self._ctx.tell(instance.worker, Abort(tickets=tickets))

    def _serving(self) -> Iterator[Instance]:
        for instance in self._instances.values():
            alive = self._journaled.state.streams.alive(instance.name, instance.incarnation)
            if instance.version is not None and alive is not None:
                yield instance

    def _waiting_batches(self) -> set[str]:
        """Batches with requests that wait for an instance: those fill idle instances."""
        log = self._journaled.state.log
        return {name for name in log.batches if log.waits.count(name)}

    def _note_edges(self) -> None:
        """Record the edge of each short round that is decided."""
        batches = self._journaled.state.log.batches
        self._rounds_over &= batches.keys()
        for name, batch in batches.items():
            is_over = len(batch.fates.kept) >= batch.wanted
            if batch.submitted.kind == "short" and is_over and name not in self._rounds_over:
                self._rounds_over.add(name)
                counted = [log for group in batch.fates.kept for log in batch.groups[group]]
                self.lengths.round_over(int(lengths(counted).max()))

    def _holding(
        self, instance: Instance, gates: dict[str, int], kinds: Codes, closed: set[str], under_way: set[str]
    ) -> Holding:
        """The requests of an instance, for the balancer. kinds: of the batches, by gate."""
        state, now = self._journaled.state, self._ctx.now()
        live = state.streams[instance.name].live()
        logs = [state.log.requests[ticket.request] for ticket in live.values()]
        executing = [ticket.started for ticket in live.values()]
        full, pending_s = sum(executing) >= instance.slots, self._pending_s
        movable = [
            (started or full or now - pending_s.get(log.id, now) > PENDING_S)
            and not (log.id in self._orders or log.id in self._moved_s or log.batch in closed)
            for log, started in zip(logs, executing, strict=True)
        ]
        made = state.log.columns.lengths([log.slot for log in logs]).astype(np.float64)
        limit = np.array([log.max_new_tokens for log in logs], np.float64)
        prompts = np.array([len(log.prompt) for log in logs], np.float64)
        gate = np.array([gates[log.batch] for log in logs], np.int64)
        may_count = ~self.lengths.beyond_edge(made, kinds[gate])
        return Holding(
            instance=instance.name,
            incarnation=instance.incarnation,
            tickets=np.array(list(live), np.int64).tobytes(),
            context=(prompts + made).tobytes(),
            expected=self.lengths.expected(made, limit, kinds[gate]).tobytes(),
            gate=gate.tobytes(),
            movable=(np.array(movable, np.bool_) & may_count).tobytes(),
            executing=np.array(executing, np.bool_).tobytes(),
            busy=instance.name in under_way,
        )

    def _prune(self) -> None:
        """Forget finished entries, so nothing here outgrows the requests in flight."""
        requests, now = self._journaled.state.log.requests, self._ctx.now()
        for name, order in list(self._orders.items()):
            if name not in requests or now > order.until_s:
                del self._orders[name]
        for name, since_s in list(self._moved_s.items()):
            if name not in requests or now - since_s > REST_S:
                del self._moved_s[name]
        for name in [name for name in self._pending_s if name not in requests]:
            del self._pending_s[name]
