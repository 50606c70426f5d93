"""Parts of RolloutManager, and how they are joined.

Owns only the joining: each part has its own module, `reactions` has the effects of an event on other parts,
`JournaledState` owns the state, the manager receives messages.
"""

from gleaner.actors.rollout.batches.cache_outlook import CacheOutlook
from gleaner.actors.rollout.batches.group_delivery import GroupReaders
from gleaner.actors.rollout.batches.group_selection import GroupSelection
from gleaner.actors.rollout.batches.scoring import Scoring
from gleaner.actors.rollout.batches.submission import BatchSubmission
from gleaner.actors.rollout.batches.whole_batches import WholeBatches
from gleaner.actors.rollout.dispatch.dispatcher import Dispatcher, PlacementConstraints
from gleaner.actors.rollout.dispatch.migration import Migration
from gleaner.actors.rollout.dispatch.quarantine import Quarantine
from gleaner.actors.rollout.dispatch.session_affinity import SessionAffinity
from gleaner.actors.rollout.fleet.drain import Drains
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.fleet.membership import (
    Membership,
    MembershipEffects,
    MembershipParts,
    MembershipSettings,
)
from gleaner.actors.rollout.fleet.overdue import OverdueWork
from gleaner.actors.rollout.fleet.step_metrics import StepMetrics
from gleaner.actors.rollout.fleet.weight_trials import WeightTrials
from gleaner.actors.rollout.fleet.weight_updates import WeightUpdates
from gleaner.actors.rollout.journal.frame_intake import Intake
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.reactions import Reactions
from gleaner.actors.rollout.requests.deadlines import Deadlines
from gleaner.actors.rollout.requests.service import RequestService, RequestServices
from gleaner.actors.rollout.requests.token_followers import TokenFollowers
from gleaner.actors.rollout.requests.version_gate import VersionGates
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.actors.rollout.state.admission import TokenLimits
from gleaner.supervisor import Context


class ManagerParts:
    """See the module. `start` once other actors may know the manager; call `reactions` on what happens."""

    def __init__(
        self, ctx: Context, journaled: JournaledState, instances: Instances, settings: ManagerSettings
    ) -> None:
        self._ctx, self._journaled, self._settings = ctx, journaled, settings
        limits = TokenLimits(
            prompt=settings.engine.max_prompt_tokens, response=settings.rollout.max_new_tokens
        )
        reactions = self.reactions = Reactions(ctx, journaled, instances)
        self.step_metrics = StepMetrics(ctx, journaled.state, instances)
        self.migration = Migration(ctx, journaled, instances)
        sessions = SessionAffinity()
        self.quarantine = Quarantine(ctx, journaled, instances)
        self.dispatcher = Dispatcher(
            ctx,
            journaled,
            instances,
            PlacementConstraints(self.migration, sessions, self.quarantine),
            on_sent=reactions.sent,
            give_up=reactions.unresponsive,
        )
        weight_updates = WeightUpdates(ctx, journaled, instances)
        self.batch_submission = BatchSubmission(
            ctx,
            journaled,
            weight_updates=weight_updates,
            step_metrics=self.step_metrics,
            limits=limits,
            act=reactions.committed,
        )
        self.weight_trials = WeightTrials(
            ctx, journaled, instances, publish=self.batch_submission.publish, tell=weight_updates.tell
        )
        self.group_readers = GroupReaders(
            ctx,
            journaled,
            instances,
            lambda: self.scoring.health.sick,
            CacheOutlook(journaled, instances, self.migration.lengths),
            on_handed_out=self.step_metrics.handed_out,
        )
        self.scoring = Scoring(
            ctx, journaled, settings.reward, reactions.verdict, on_health=self.group_readers.look
        )
        self.group_selection = GroupSelection(
            ctx, journaled, instances, settings.engine.max_prompt_tokens, reactions.committed
        )
        self.whole_batches = WholeBatches(ctx, journaled.state, wanted=settings.engine.width_plan != "off")
        self.deadlines = Deadlines(ctx, journaled, instances, settings.rollout.request_deadline_s)
        self.token_followers = TokenFollowers(ctx, journaled)
        self.version_gates = VersionGates(ctx, journaled, instances)
        services = RequestServices(self.version_gates, self.deadlines, self.token_followers, sessions)
        self.request_service = RequestService(
            ctx, journaled, limits, services, self.batch_submission.open, self.batch_submission.close
        )
        self.drains = Drains(ctx, journaled)
        self.intake = Intake(
            journaled, reactions.committed, reactions.frame_arrived, ctx.idle, self.token_followers
        )
        self.overdue = OverdueWork(
            ctx, journaled.state, instances, settings.rollout.deadline_s, self.intake.uncommitted
        )
        self.members = Membership(
            ctx,
            journaled,
            instances,
            MembershipSettings(settings.rollout, settings.ablation),
            MembershipParts(
                dispatcher=self.dispatcher,
                weight_trials=self.weight_trials,
                step_metrics=self.step_metrics,
                drains=self.drains,
                overdue=self.overdue,
                quarantine=self.quarantine,
            ),
            MembershipEffects(
                committed=reactions.committed, serving=reactions.serving, deadly=reactions.deadly
            ),
        )
        reactions.parts = self

    def start(self) -> None:
        """Accept frames from now on, and start the background tasks."""
        ctx, settings = self._ctx, self._settings
        self.receiver = self.intake.receiver = ctx.network.token_receiver(
            self.intake.take, self._journaled.state.streams.have, window=settings.limits.credit_frames
        )
        ctx.at_end(self.receiver.close)
        self.scoring.start()
        self.group_selection.start()
        ctx.background(self.dispatcher.run(), "dispatch")
        ctx.background(self.intake.enter(), "frames")
        ctx.background(self.intake.acknowledge(), "acknowledge")
        ctx.background(self.token_followers.run(), "follow")
        if settings.rollout.continuous_lb:
            ctx.background(self.migration.run(), "moves")
