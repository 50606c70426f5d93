"""Recoveries: counts from process summaries and from messages.

Owns the mapping from a production count to its name in `coverage`. The counts of a process die with it, so
they are read again and again, and the last reading of each life is kept.
"""

from collections import Counter
from collections.abc import Mapping

from gleaner.actors.cluster.state_manager import Rewound
from gleaner.actors.names import MANAGER, PROVIDER, REWARD
from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.actors.protocol.cluster import NodeHello, NodeSeen, PreemptionNotice
from gleaner.actors.protocol.instances import (
    Dispatch,
    NotLoaded,
    Registered,
    RegisterInstance,
    Withdrawn,
)
from gleaner.actors.protocol.requests import Generated, VersionNotReady
from gleaner.actors.protocol.reward import CancelItems, ItemsScored, ScoreItems
from gleaner.actors.protocol.rollout import Groups, TakeGroups
from gleaner.actors.protocol.training import HalveSeeding
from gleaner.actors.rollout.state.events import (
    Dispatched,
    GroupsAdded,
    GroupsClosed,
    GroupsDropped,
    RequestsDue,
    SampleAgain,
    TicketsRenewed,
    TicketsRevoked,
)
from gleaner.actors.rollout.state.group_policy import SURPLUS
from gleaner.actors.training.draw_events import RoundDrawn
from gleaner.chaos.invariants.facts import Committed, MessagePassed, RequestAnswered
from gleaner.chaos.invariants.gateway_facts import CallOver
from gleaner.supervisor.inspection.vitals import Recovery
from gleaner.supervisor.system_messages import LeaseGranted, SystemState

LINKS = ("resent", "duplicates", "gaps")
FIGURES: Mapping[str, str] = {
    "groups_read_back": "groups.read_back",
    "frames_twice": "streams.duplicates",
    "frames_missing": "streams.gaps",
    "streams_fenced": "streams.fenced",
    "frames_sent_again": "streams.resent",
    "pulls_resumed": "weights.resumed_pulls",
    "chunks_pulled_again": "weights.bad_chunks",
    "deltas_applied": "weights.deltas",
    "pulls_from_relays": "weights.relayed",
    "pulls_without_room": "weights.no_room",
    "workers_lost": "rewards.deaths",
    "lost_with_host": "rewards.lost_with_host",
    "tried_elsewhere": "rewards.tried_elsewhere",
    "late_results": "rewards.late_results",
    "foreign_results": "rewards.foreign_results",
    "plans": "rewards.plans",
    "blobs_fetched": "rewards.blobs_fetched",
    "begun_again": "rewards.begun_again",
}
"""Figures in the actors' summaries."""
RECOVERIES: Mapping[str, str] = {
    Recovery.ASK_SENT_AGAIN: "asks.resent",
    Recovery.ASK_REPEATED: "asks.repeated",
    Recovery.PEER_SILENT: "watches.silent",
    Recovery.PEER_BACK: "watches.unsuspected",
    Recovery.CHILD_KILLED: "children.killed",
}
DISKS: Mapping[str, str] = {
    "refused: fenced": "journals.fenced",
    "tail repaired": "journals.repaired",
    "cut off: lost": "journals.cut_off",
    "cut off: torn": "journals.cut_off",
    "refused: full": "journals.refused",
    "replayed": "journals.replayed",
}
COUNTED = frozenset((
    Dispatch, Withdrawn, NotLoaded, NodeSeen, Groups, TakeGroups, PreemptionNotice, RegisterInstance,
    Registered, LeaseGranted, CancelItems, ItemsScored, ScoreItems, HalveSeeding, NodeHello,
))  # fmt: skip
"""Messages of which some are counted."""
STRATEGIES = ("one_for_one", "one_for_all", "rest_for_one")


class Recoveries:
    """See the module. `process` names one life of one process. `stays`: number of ended stays of a trace: of
    hosts that it removed, and of hosts that it gave notice, each once."""

    def __init__(self) -> None:
        self.stays = 0
        self._noticed: set[str] = set()  # hosts whose stay was counted by its notice
        self._read: dict[tuple[str, ...], int] = {}  # last readings, by the owner of the count
        self._seen: Counter[str] = Counter()
        self._takers: dict[str, set[int]] = {}
        self._asked_as: dict[str, int] = {}  # incarnation of the worker that registers, by its process
        self._engines: dict[str, tuple[int, int]] = {}  # by host: its node agent, and the width of its engine
        self._relaunches: set[str] = set()  # hosts whose engine of another width has not registered yet
        self._epochs: dict[tuple[str, int], str] = {}  # epoch of its registration
        self._manager = 0  # its incarnation
        self._began: dict[str, int] = {}  # the manager that began a single request, by its batch
        self._given: dict[str, str] = {}  # by item on a reward host: the life of the proxy that sent it
        self._lost: set[str] = set()  # single requests whose answer was lost

    def shown(self, process: str, state: SystemState) -> None:
        """Take the present summary of a process."""
        for actor in state.actors:
            life = (process, actor.name, str(actor.incarnation))
            for figure, name in FIGURES.items():
                value = actor.figures.get(figure)
                if value and isinstance(value, int):
                    self._keep((name, *life), value)
            if actor.restarts and actor.strategy in STRATEGIES:
                self._keep((f"restarts.{actor.strategy}", process, actor.name), actor.restarts)
                if actor.name.startswith("rank-"):
                    self._keep(("restarts.gang", process, actor.name), actor.restarts)
        if state.links is not None:
            for total in LINKS:
                if count := state.links.totals.get(total, 0):
                    self._keep((f"links.{total}", process), count)
        if state.vitals is not None:
            for kind, name in RECOVERIES.items():
                if count := state.vitals.recoveries.get(kind, 0):
                    self._keep((name, process), count)

    def lost(self, process: str, messages: int) -> None:
        """Totals of lost in-flight messages when links of a process ended."""
        self._keep(("links.lost", process), messages)

    def message_passed(self, fact: MessagePassed) -> None:
        """Take a message."""
        message = fact.message
        if type(message) not in COUNTED:  # as most
            return
        match message:
            case Dispatch() if fact.direction == "out":
                self._seen["requests.migrated_tokens"] += sum(bool(work.prefix) for work in message.work)
            case Withdrawn() if fact.source == REWARD:
                self._seen["rewards.drained"] += fact.direction != "in"
            case Withdrawn() if fact.direction != "in":
                self._seen["requests.handed_over"] += message.handed_over
            case NotLoaded() if fact.direction == "in":
                self._seen["weights.failed_loads"] += 1
            case NodeSeen(event="drained") if fact.direction != "in":
                self._seen["hosts.drained"] += 1
            case NodeSeen(event="spared") if fact.direction != "in":
                self._seen["hosts.spared"] += 1
            case Groups(groups=[_, *_]) if fact.direction == "out":
                self._seen["steps.colocated"] += message.remote_serving == 0
                samples = [sample for group in message.groups for sample in group.samples]
                versions = [{span.version for span in sample.spans} for sample in samples]
                self._seen["requests.several_versions"] += sum(len(made) > 1 for made in versions)
            case HalveSeeding() if fact.direction != "in":
                self._seen["steps.stairs"] += 1
            case TakeGroups() if fact.direction == "in" and message.batch.startswith("step-"):
                takers = self._takers.setdefault(message.batch, set())
                self._seen["steps.resumed"] += bool(takers) and message.taker not in takers
                takers.add(message.taker)
            case PreemptionNotice() if fact.direction == "in" and fact.source.startswith(PROVIDER):
                host = fact.process.partition("/")[0]
                self.stays += host not in self._noticed
                self._noticed.add(host)
            case NodeHello() if fact.direction == "out":
                agent, width = self._engines.get(message.node, (0, 0))
                if agent == message.agent.incarnation and 0 < width != message.width > 0:
                    self._relaunches.add(message.node)
                self._engines[message.node] = message.agent.incarnation, message.width
            case RegisterInstance() if fact.direction == "out":
                host = fact.process.partition("/")[0]
                is_new = self._asked_as.get(fact.process) != message.worker.incarnation
                if is_new and host in self._relaunches:
                    self._relaunches.remove(host)
                    self._seen["engines.relaunched"] += 1
                self._asked_as[fact.process] = message.worker.incarnation
            case Registered() if fact.direction == "in":
                worker = (fact.process, self._asked_as.get(fact.process, 0))
                epoch = self._epochs.get(worker, message.epoch)
                self._seen["workers.registered_again"] += epoch != message.epoch
                self._epochs[worker] = message.epoch
            case CancelItems() if fact.direction == "out":
                self._seen["rewards.cancelled"] += len(message.items)
            case ScoreItems() if fact.direction == "out":
                for item in message.items:
                    self._given[item.id] = message.epoch.partition(".")[0]
            case ItemsScored() if fact.direction == "in":
                life = message.epoch.partition(".")[0]
                given = [self._given.pop(result.id, life) for result in message.results]
                self._seen["rewards.outlived_proxy"] += sum(it != life for it in given)
            case LeaseGranted() if fact.direction != "in":
                self._seen["names.superseded"] += len(message.superseded)
            case _:
                return

    def answered(self, fact: RequestAnswered) -> None:
        """Take a caller's ask for a single request, and its result."""
        request, answer = fact.request, fact.answer
        match answer:
            case Generated():
                self._seen["singles.answered"] += 1
                self._seen["singles.retried"] += request.id in self._lost
                self._seen["singles.resumed"] += request.accepted > 0
                self._seen["singles.several_versions"] += len(answer.versions) > 1
                began = self._began.get(f"generate-{request.id}", self._manager)
                self._seen["singles.kept"] += began < self._manager
                self._lost.discard(request.id)
            case VersionNotReady():
                self._seen["singles.not_ready"] += 1
            case _ if fact.refusal:
                self._seen["singles.refused"] += 1
            case _:
                self._lost.add(request.id)

    def called(self, fact: CallOver) -> None:
        """Take the end of a call of an HTTP client."""
        whole, broken = fact.outcome == "whole", fact.outcome == "broken"
        self._seen["gateway.answered"] += whole
        self._seen["gateway.again"] += whole and fact.call.attempt > 0
        self._seen["gateway.cut"] += broken and any(got.text for got in fact.choices)
        self._seen["gateway.left"] += fact.outcome == "left"
        self._seen["gateway.refused"] += fact.outcome == "refused" and not fact.call.wrong

    def committed(self, fact: Committed) -> None:
        """Take a commit."""
        if fact.stream == MANAGER:
            self._manager = max(self._manager, fact.incarnation)
        for message in fact.messages:
            if isinstance(message, Rewound):
                self._seen["steps.rewound"] += 1
            elif isinstance(message, BatchSubmitted) and not message.scored:
                self._began.setdefault(message.batch, fact.incarnation)
            elif isinstance(message, RequestsDue):
                self._seen["requests.due"] += len(message.requests)
            elif isinstance(message, GroupsAdded):
                self._seen["groups.refilled"] += len(message.prompts)
            elif isinstance(message, GroupsDropped) and message.why == SURPLUS:
                self._seen["groups.aborted"] += len(message.groups)
            elif isinstance(message, GroupsClosed):
                self._seen["samples.surplus"] += len(message.groups)
            elif isinstance(message, RoundDrawn) and message.kind == "long":
                self._seen["draws.deferred"] += len(message.draws)
            elif isinstance(message, SampleAgain):
                self._seen["samples.again"] += 1
            elif isinstance(message, Dispatched):
                self._seen["requests.moved"] += message.moved
            elif isinstance(message, TicketsRevoked):
                self._seen["requests.revoked"] += len(message.tickets)
            elif isinstance(message, TicketsRenewed):
                self._seen["requests.kept"] += len(message.tickets)

    def withdrawn(self, host: str) -> None:
        """The provider removed a running host, as its trace demands."""
        self.stays += host not in self._noticed
        self._noticed.discard(host)

    def gave_up(self) -> None:
        """A supervisor failed upward, and its process with it."""
        self._seen["restarts.gave_up"] += 1

    def watchdogs(self, count: int) -> None:
        """Take the number of node agents that their service managers ended, at the end."""
        self._seen["hosts.watchdog"] += count

    def disks(self, counts: Mapping[str, int]) -> None:
        """Take the events of the disks, at the end."""
        for what, count in counts.items():
            name = DISKS.get(what)
            if name is not None:
                self._seen[name] += count

    def counts(self) -> dict[str, int]:
        """All counts, by the names of `coverage`."""
        total = Counter(self._seen)
        for key, value in self._read.items():
            total[key[0]] += value
        return {name: total[name] for name in sorted(total) if total[name]}

    def _keep(self, key: tuple[str, ...], value: int) -> None:
        self._read[key] = max(self._read.get(key, 0), value)
