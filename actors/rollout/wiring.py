"""Parts of RolloutManager, and how they are joined.

Owns only the joining: each part has its own module, `reactions` has the effects of an event on other parts,
`Books` owns the state, the manager receives messages.
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
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.fleet.membership import Membership
from gleaner.actors.rollout.fleet.overdue import Owed
from gleaner.actors.rollout.fleet.step_metrics import Measuring
from gleaner.actors.rollout.fleet.weight_trials import Loading
from gleaner.actors.rollout.fleet.weight_updates import Flipping
from gleaner.actors.rollout.journal.frame_intake import Intake
from gleaner.actors.rollout.journal.journaled_state import Books
from gleaner.actors.rollout.reactions import Reactions
from gleaner.actors.rollout.requests.deadlines import Deadlines
from gleaner.actors.rollout.requests.service import Singles
from gleaner.actors.rollout.requests.token_followers import Following
from gleaner.actors.rollout.requests.version_gate import Gates
from gleaner.configs.schema import Config
from gleaner.supervisor import Context


class Parts:
    """See the module. `start` once other actors may know the manager; call `reactions` on what happens."""

    def __init__(self, ctx: Context, books: Books, instances: Instances, config: Config) -> None:
        self._ctx, self._books, self._config = ctx, books, config
        reactions = self.reactions = Reactions(ctx, books, instances)
        self.measuring = Measuring(ctx, books.state, instances)
        self.moving = Moving(ctx, books, instances)
        sessions = Sessions()
        self.quarantine = Quarantine(ctx, books, instances)
        self.dispatching = Dispatching(
            ctx,
            books,
            instances,
            on_sent=reactions.sent,
            give_up=reactions.unresponsive,
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
            act=reactions.committed,
        )
        self.loading = Loading(ctx, books, instances, publish=self.opening.publish, tell=flipping.tell)
        self.takers = Takers(
            ctx,
            books,
            instances,
            lambda: self.scoring.health.sick,
            on_handed_out=self.measuring.handed_out,
        )
        self.scoring = Scoring(ctx, books, config.reward, reactions.verdict, on_health=self.takers.look)
        self.selecting = Selecting(
            ctx, books, instances, config.engine.max_prompt_tokens, reactions.committed
        )
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
            act=reactions.committed,
            on_deadly=reactions.deadly,
            on_serving=reactions.serving,
        )
        self.intake = Intake(books, reactions.committed, reactions.heard, ctx.idle, self.following)
        reactions.parts = self

    def start(self) -> None:
        """Accept frames from now on, and start the background tasks."""
        ctx, config = self._ctx, self._config
        self.receiver = self.intake.receiver = ctx.network.token_receiver(
            self.intake.take, self._books.state.streams.have, window=config.limits.credit_frames
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
