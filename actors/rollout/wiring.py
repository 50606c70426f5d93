"""Parts of RolloutManager: how they are joined, and the effects of an event.

Owns only the joining: each part has its own module, `Books` owns the state, the manager receives messages.
"""

from gleaner.actors.rollout.batches.group_delivery import Takers
from gleaner.actors.rollout.batches.group_selection import Selecting
from gleaner.actors.rollout.batches.scoring import Scoring
from gleaner.actors.rollout.batches.submission import Opening
from gleaner.actors.rollout.dispatch.dispatcher import Dispatching
from gleaner.actors.rollout.dispatch.migration import Moving
from gleaner.actors.rollout.dispatch.quarantine import Quarantine
from gleaner.actors.rollout.dispatch.session_affinity import Sessions
from gleaner.actors.rollout.fleet.drain import Withdrawals
from gleaner.actors.rollout.fleet.instance_table import Instance, Instances
from gleaner.actors.rollout.fleet.membership import Membership
from gleaner.actors.rollout.fleet.overdue import Owed
from gleaner.actors.rollout.fleet.step_metrics import Measuring
from gleaner.actors.rollout.fleet.weight_trials import Loading
from gleaner.actors.rollout.fleet.weight_updates import Flipping
from gleaner.actors.rollout.journal.frame_intake import Intake
from gleaner.actors.rollout.journal.journaled_state import Books
from gleaner.actors.rollout.requests.deadlines import Deadlines
from gleaner.actors.rollout.requests.service import Singles
from gleaner.actors.rollout.requests.token_followers import Following
from gleaner.actors.rollout.requests.version_gate import Gates
from gleaner.actors.rollout.state.effects import Changes
from gleaner.actors.rollout.state.events import SampleAgain, Scored
from gleaner.actors.rollout.state.group_policy import made_again
from gleaner.actors.rollout.state.request_log import RequestLog
from gleaner.configs.schema import Config
from gleaner.supervisor import Context


class Parts:
    """See the module. `start` once other actors may know the manager; `act` on what each event changed."""

    def __init__(self, ctx: Context, books: Books, instances: Instances, config: Config) -> None:
        self._ctx, self._books, self._instances, self._config = ctx, books, instances, config
        self._state = books.state
        self.measuring = Measuring(ctx, books.state, instances)
        self.moving = Moving(ctx, books, instances)
        sessions = Sessions()
        self.quarantine = Quarantine(ctx, books, instances)
        self.dispatching = Dispatching(
            ctx,
            books,
            instances,
            on_sent=self._sent,
            give_up=self._give_up,
            moving=self.moving,
            sessions=sessions,
            quarantine=self.quarantine,
        )
        flipping = Flipping(ctx, books, instances)
        self.opening = Opening(
            ctx,
            books,
            flipping=flipping,
            measuring=self.measuring,
            max_prompt_tokens=config.engine.max_prompt_tokens,
            max_new_tokens=config.rollout.max_new_tokens,
            act=self.act,
        )
        self.loading = Loading(ctx, books, instances, publish=self.opening.publish, tell=flipping.tell)
        self.takers = Takers(
            ctx,
            books,
            instances,
            lambda: self.scoring.health.sick,
            on_handed_out=self.measuring.handed_out,
        )
        self.scoring = Scoring(ctx, books, config.reward, self._scored, on_health=self.takers.look)
        self.selecting = Selecting(ctx, books, instances, config.engine.max_prompt_tokens, self.act)
        self.deadlines = Deadlines(ctx, books, instances, config.rollout.request_deadline_s)
        self.following = Following(ctx, books)
        self.gates = Gates(ctx, books, instances)
        self.singles = Singles(
            ctx,
            books,
            self.gates,
            self.deadlines,
            config,
            self.following,
            sessions,
            self.opening.open,
            self.opening.close,
        )
        self.withdrawals = Withdrawals(ctx, books.state)
        self.owed = Owed(ctx, books.state, instances, config.rollout.deadline_s)
        self.members = Membership(
            ctx,
            books,
            instances,
            config,
            dispatching=self.dispatching,
            loading=self.loading,
            measuring=self.measuring,
            withdrawals=self.withdrawals,
            owed=self.owed,
            quarantine=self.quarantine,
            act=self.act,
            on_deadly=self._on_deadly,
            on_serving=self._on_serving,
        )
        self.intake = Intake(books, self.act, self._heard, ctx.idle, self.following)

    def start(self) -> None:
        """Accept frames from now on, and start the background tasks."""
        ctx, config = self._ctx, self._config
        self.receiver = self.intake.receiver = ctx.network.token_receiver(
            self.intake.take, self._state.streams.have, window=config.limits.credit_frames
        )
        ctx.at_end(self.receiver.close)
        self.scoring.start()
        self.selecting.start()
        ctx.background(self.dispatching.run(), "dispatch")
        ctx.background(self.intake.enter(), "frames")
        ctx.background(self.intake.acknowledge(), "acknowledge")
        ctx.background(self.following.run(), "follow")
        if config.rollout.continuous_lb:
            ctx.background(self.moving.run(), "moves")

    def act(self, changes: Changes) -> None:
        """Act on a committed event."""
        self.dispatching.note(changes)
        self.measuring.note(changes)
        self.moving.note(changes)
        for request in changes.finished:
            log = self._state.log.requests.get(request)
            if log is None:
                continue
            if self._state.log.batches[log.batch].submitted.scored:
                self.scoring.add(request)
            else:
                self.singles.finished(log)
                self.quarantine.forget(log.id)
        if changes.completed:
            for name in dict.fromkeys(batch for batch, _ in changes.completed):
                batch = self._state.log.batches.get(name)
                if batch is not None and batch.selects:
                    self.selecting.look(batch)
            self.takers.look()
        if changes.ended or changes.queued or changes.started:
            self.dispatching.wake()
            self.withdrawals.look()

    def _sent(self, instance: Instance, logs: list[RequestLog]) -> None:
        instance.heard_s = self._ctx.turn_time()  # its silence counts from here
        self.owed.moved()
        self.measuring.sent(instance, logs)
        self.moving.sent(logs)
        self.deadlines.sent(logs)
        self.quarantine.sent(logs)

    async def _give_up(self, name: str, incarnation: int, cause: str) -> None:
        await self.members.lose(name, incarnation, cause)

    async def _on_deadly(self, requests: list[str]) -> None:
        for request in requests:
            await self.singles.deadly(request)
            self.quarantine.forget(request)

    def _on_serving(self) -> None:
        self.gates.changed()
        self.moving.wake()
        self.takers.look()

    def _heard(self, name: str) -> None:
        self._instances.heard(name, self._ctx.turn_time())

    async def _scored(self, event: Scored) -> None:
        """Record a verdict. If it does not judge the sample, that sample alone is generated again."""
        log = self._state.log.requests.get(event.request)
        if log is not None:
            batch = self._state.log.batches[log.batch]
            if not log.due and made_again(event.status, log.again, batch.submitted.again):
                self._ctx.log.info("sample generated again: request=%s: %s", log.id, event.status)
                again = SampleAgain(request=log.id, why=event.status, detail=event.detail)
                self.act(await self._books.record(again))
                return
        self.act(await self._books.record(event))
