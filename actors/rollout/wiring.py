"""Parts of RolloutManager, and how they are joined.

Owns only the joining: each part has its own module, `reactions` has the effects of an event on other parts,
`Books` owns the state, the manager receives messages.
"""

from gleaner.actors.rollout.batches.group_delivery import Takers
from gleaner.actors.rollout.batches.group_selection import Selecting
from gleaner.actors.rollout.batches.scoring import Scoring
from gleaner.actors.rollout.batches.submission import Opening
from gleaner.actors.rollout.dispatch.dispatcher import Dispatching, PlacementConstraints
from gleaner.actors.rollout.dispatch.migration import Moving
from gleaner.actors.rollout.dispatch.quarantine import Quarantine
from gleaner.actors.rollout.dispatch.session_affinity import Sessions
from gleaner.actors.rollout.fleet.drain import Withdrawals
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.fleet.membership import (
    Membership,
    MembershipEffects,
    MembershipParts,
    MembershipSettings,
)
from gleaner.actors.rollout.fleet.overdue import Owed
from gleaner.actors.rollout.fleet.step_metrics import Measuring
from gleaner.actors.rollout.fleet.weight_trials import Loading
from gleaner.actors.rollout.fleet.weight_updates import Flipping
from gleaner.actors.rollout.journal.frame_intake import Intake
from gleaner.actors.rollout.journal.journaled_state import Books
from gleaner.actors.rollout.reactions import Reactions
from gleaner.actors.rollout.requests.deadlines import Deadlines
from gleaner.actors.rollout.requests.service import RequestServices, Singles
from gleaner.actors.rollout.requests.token_followers import Following
from gleaner.actors.rollout.requests.version_gate import Gates
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.actors.rollout.state.admission import TokenLimits
from gleaner.supervisor import Context


class Parts:
    """See the module. `start` once other actors may know the manager; call `reactions` on what happens."""

    def __init__(self, ctx: Context, books: Books, instances: Instances, settings: ManagerSettings) -> None:
        self._ctx, self._books, self._settings = ctx, books, settings
        limits = TokenLimits(
            prompt=settings.engine.max_prompt_tokens, response=settings.rollout.max_new_tokens
        )
        reactions = self.reactions = Reactions(ctx, books, instances)
        self.measuring = Measuring(ctx, books.state, instances)
        self.moving = Moving(ctx, books, instances)
        sessions = Sessions()
        self.quarantine = Quarantine(ctx, books, instances)
        self.dispatching = Dispatching(
            ctx,
            books,
            instances,
            PlacementConstraints(self.moving, sessions, self.quarantine),
            on_sent=reactions.sent,
            give_up=reactions.unresponsive,
        )
        flipping = Flipping(ctx, books, instances)
        self.opening = Opening(
            ctx,
            books,
            flipping=flipping,
            measuring=self.measuring,
            limits=limits,
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
        self.scoring = Scoring(ctx, books, settings.reward, reactions.verdict, on_health=self.takers.look)
        self.selecting = Selecting(
            ctx, books, instances, settings.engine.max_prompt_tokens, reactions.committed
        )
        self.deadlines = Deadlines(ctx, books, instances, settings.rollout.request_deadline_s)
        self.following = Following(ctx, books)
        self.gates = Gates(ctx, books, instances)
        services = RequestServices(self.gates, self.deadlines, self.following, sessions)
        self.singles = Singles(ctx, books, limits, services, self.opening.open, self.opening.close)
        self.withdrawals = Withdrawals(ctx, books.state)
        self.owed = Owed(ctx, books.state, instances, settings.rollout.deadline_s)
        self.members = Membership(
            ctx,
            books,
            instances,
            MembershipSettings(settings.rollout, settings.ablation),
            MembershipParts(
                dispatching=self.dispatching,
                loading=self.loading,
                measuring=self.measuring,
                withdrawals=self.withdrawals,
                owed=self.owed,
                quarantine=self.quarantine,
            ),
            MembershipEffects(
                committed=reactions.committed, serving=reactions.serving, deadly=reactions.deadly
            ),
        )
        self.intake = Intake(books, reactions.committed, reactions.heard, ctx.idle, self.following)
        reactions.parts = self

    def start(self) -> None:
        """Accept frames from now on, and start the background tasks."""
        ctx, settings = self._ctx, self._settings
        self.receiver = self.intake.receiver = ctx.network.token_receiver(
            self.intake.take, self._books.state.streams.have, window=settings.limits.credit_frames
        )
        ctx.at_end(self.receiver.close)
        self.scoring.start()
        self.selecting.start()
        ctx.background(self.dispatching.run(), "dispatch")
        ctx.background(self.intake.enter(), "frames")
        ctx.background(self.intake.acknowledge(), "acknowledge")
        ctx.background(self.following.run(), "follow")
        if settings.rollout.continuous_lb:
            ctx.background(self.moving.run(), "moves")
