"""Random walks of the real state objects of rollout, recording state changes.

Each walk yields the rows of docs/states.md: from which state, to which one, by which event. The events are
those of the journal, applied by `RolloutState.apply`; an instance is driven through `Membership`.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import msgspec

from gleaner.actors.protocol.instances import CannotTake, NewWork, RegisterInstance, Serving, Withdraw
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.fleet.membership import (
    Membership,
    MembershipEffects,
    MembershipParts,
    MembershipSettings,
)
from gleaner.actors.rollout.state.events import (
    BatchReleased,
    Dispatched,
    GroupsAdded,
    GroupsTaken,
    InstanceGone,
    InstanceJoined,
    Prompt,
    RequestsDue,
    SampleAgain,
    Scored,
    TicketsRevoked,
    VersionFailed,
    VersionPublished,
)
from gleaner.actors.rollout.state.group_events import decision_of, events_of
from gleaner.actors.rollout.state.group_policy import SURPLUS
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.rollout.state.tickets import ABORTED, FINISHED, NO_TOKEN
from gleaner.actors.rollout.state.token_log import Batch
from gleaner.actors.rollout.state.versions import MAX_KNOWN
from gleaner.configs.schema import Config
from gleaner.supervisor import Address, Message, Refused, Terminated
from gleaner.transport.wire import Peer
from tests.actors.rollout.rollout_world import frame, submission

NONE = "-"  # not there yet, or removed
Transition = tuple[str, str, str]  # from, to, event
INSTANCES = ("spot-1/engine", "spot-2/engine")


def _group(batch: Batch, group: int) -> str:
    if group in batch.taken:
        return "taken"
    if group in batch.fates.kept:
        return "kept"
    if why := batch.fates.dropped.get(group):
        return "aborted" if why == SURPLUS else "dropped"
    return "complete" if batch.complete(group) else "open"


class Rollout:
    """One walk of requests and groups: instances join and leave, decode, and are scored."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.state = RolloutState()
        self.requests: set[Transition] = set()
        self.groups: set[Transition] = set()
        self.seqs: dict[str, int] = {}
        self.incarnation = 0
        self.batches = 0
        self.taker = 1

    def apply(self, event: Message) -> None:
        """Apply an event, and record what it changes."""
        requests, groups = self._states()
        self.state.apply(event)
        assert not self.state.check()
        for seen, before, after in zip(
            (self.requests, self.groups), (requests, groups), self._states(), strict=True
        ):
            for key in before.keys() | after.keys():
                old, new = before.get(key, NONE), after.get(key, NONE)
                if old != new:
                    seen.add((old, new, type(event).__name__))

    def _states(self) -> tuple[dict[str, str], dict[tuple[str, int], str]]:
        log = self.state.log
        requests = {request.id: request.state.value for request in log.requests.values()}
        groups = {
            (name, number): _group(batch, number)
            for name, batch in log.batches.items()
            for number in range(len(batch.groups))
        }
        return requests, groups

    def walk(self, steps: int) -> None:
        """Take this many random steps."""
        moves: list[Callable[[], None]] = [
            *[self.submit, self.join, self.lose, self.revoke, self.due, self.release, self.take, self.skip],
            *[self.dispatch, self.dispatch, self.decode, self.score, self.score] * 3,
            *[self.decide] * 2,
        ]
        for _ in range(steps):
            self.random.choice(moves)()

    def submit(self) -> None:
        if len(self.state.log.batches) < 2:
            self.batches += 1
            event = submission(f"step-{self.batches}", groups=4)
            if self.random.random() < 0.7:
                event = msgspec.structs.replace(
                    event, wanted=2, most=6, drop_uniform=True, over_sampling=1.5, again=1
                )
            self.apply(event)

    def join(self) -> None:
        name = self.random.choice(INSTANCES)
        self.incarnation += 1
        self.seqs[name] = 0
        self.apply(InstanceJoined(instance=name, incarnation=self.incarnation))

    def lose(self) -> None:
        for name, incarnation in self._alive():
            self.apply(InstanceGone(instance=name, incarnation=incarnation, cause="killed"))

    def revoke(self) -> None:
        for name, incarnation in self._alive():
            live = tuple(self.state.streams[name].live())[:1]
            self.apply(TicketsRevoked(instance=name, incarnation=incarnation, tickets=live))

    def dispatch(self) -> None:
        queued = self.state.log.queued()
        for name, incarnation in self._alive() if queued else ():
            ticket = self.state.streams[name].next_ticket
            self.apply(
                Dispatched(
                    instance=name,
                    incarnation=incarnation,
                    version=1,
                    tickets=(ticket,),
                    requests=(self.random.choice(queued).id,),
                )
            )

    def decode(self) -> None:
        for name, incarnation in self._alive():
            rows = []
            for ticket in self.state.streams[name].live():
                flags = self.random.choice([0, 0, FINISHED, ABORTED | NO_TOKEN])
                rows.append((ticket, 5, -0.5, flags))
            self.seqs[name] += 1
            self.apply(frame(name, incarnation, self.seqs[name], rows))

    def score(self) -> None:
        for request in self.state.log.unscored()[:2]:
            again = self.state.log.batches[request.batch].submitted.again
            if self.random.random() < 0.2 and request.again < again:
                self.apply(SampleAgain(request=request.id, why="verifier_failed"))
            else:
                self.apply(Scored(request=request.id, score=float(self.random.random() < 0.5)))

    def decide(self) -> None:
        for batch in list(self.state.log.batches.values()):
            decision = decision_of(batch)
            for event in events_of(batch.name, decision):
                self.apply(event)
            if decision.add:
                prompts = (Prompt(split="train", index=9, tokens=(1,), seeds=(1, 2)),) * decision.add
                self.apply(GroupsAdded(batch=batch.name, first=len(batch.groups), prompts=prompts))

    def due(self) -> None:
        if requests := list(self.state.log.requests):
            self.apply(RequestsDue(requests=tuple(self.random.choices(requests, k=2))))

    def take(self) -> None:
        for batch in list(self.state.log.batches.values()):
            ready = tuple(batch.ready(self.taker))
            self.apply(
                GroupsTaken(batch=batch.name, taker=self.taker, groups=ready[: self.random.randrange(3)])
            )

    def skip(self) -> None:
        """The trainer is restarted."""
        self.taker += 1

    def release(self) -> None:
        if self.random.random() < 0.2 and self.state.log.batches:
            self.apply(BatchReleased(batch=next(iter(self.state.log.batches))))

    def _alive(self) -> list[tuple[str, int]]:
        streams = list(self.state.streams.items())
        return [(name, stream.incarnation) for name, stream in streams if not stream.gone]


def request_and_group_transitions() -> tuple[set[Transition], set[Transition]]:
    """The transitions of requests and of groups in many walks."""
    requests: set[Transition] = set()
    groups: set[Transition] = set()
    for seed in range(40):
        walk = Rollout(seed)
        walk.walk(300)
        requests |= walk.requests
        groups |= walk.groups
    return requests, groups


def version_transitions() -> set[Transition]:
    """The transitions of weight versions in a walk."""
    chance, state, seen = random.Random(0), RolloutState(), set[Transition]()

    def states() -> dict[int, str]:
        known = state.versions
        return {
            version: name
            for name, table in (("known", known.known), ("lost", known.lost), ("failed", known.failed))
            for version in table
        }

    highest = 0
    for _ in range(6000):
        highest += chance.random() < 0.5
        version = max(0, highest - int(chance.expovariate(1 / 10)))
        root = bytes([chance.randrange(2)])
        event: Message = VersionPublished(version=version, root=root, sources=())
        if chance.random() < 0.4:
            event = VersionFailed(version=version, root=state.versions.root(version) or root, why="no memory")
        before = states()
        state.apply(event)
        after = states()
        for number in before.keys() | after.keys():
            old, new = before.get(number, NONE), after.get(number, NONE)
            if old != new:
                seen.add((old, new, type(event).__name__))
    assert max(map(len, (state.versions.known, state.versions.lost, state.versions.failed))) <= MAX_KNOWN
    return seen


class Member:
    """A walk of one instance through the manager's `Membership`, with mocks of the parts that it calls."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.state = RolloutState()
        self.seen: set[Transition] = set()
        self.incarnation = 0
        self.ended: list[Terminated] = []
        self.start()

    def start(self) -> None:
        """The manager starts, with the state of its journal and no registration."""
        self.instances = Instances()
        ctx = MagicMock(turn_time=lambda: 0.0, tell=AsyncMock(), incarnation=1)
        ctx.background = lambda work, name: work.close()  # the end of an instance is handled by `lose`
        journaled = MagicMock(state=self.state, newest_weights=lambda: None)
        journaled.record = AsyncMock(side_effect=self.state.apply)
        weight_trials = MagicMock(serving=AsyncMock())
        parts = MembershipParts(
            dispatcher=MagicMock(),
            weight_trials=weight_trials,
            step_metrics=MagicMock(),
            drains=MagicMock(),
            overdue=MagicMock(),
            quarantine=MagicMock(died=lambda *_: []),
        )
        effects = MembershipEffects(committed=MagicMock(), serving=MagicMock(), deadly=AsyncMock())
        self.membership = Membership(
            ctx,
            journaled,
            self.instances,
            MembershipSettings.of(Config()),
            parts,
            effects,
        )

    def now(self) -> str:
        """The state of the instance."""
        stream = self.state.streams.get(INSTANCES[0])
        instance = self.instances.get(INSTANCES[0])
        if stream is None:
            return NONE
        if instance is None:
            return "gone" if stream.gone else "unreachable"
        if instance.idle:
            return "draining"
        return "registered" if instance.version is None else "serving"

    async def walk(self, steps: int) -> None:
        """Take this many random steps."""
        for _ in range(steps):
            name, before = self.random.choice(list(self.moves())), self.now()
            try:
                await self.moves()[name]()
            except Refused:
                assert self.now() == before
            if self.now() != before:
                self.seen.add((before, self.now(), name.rstrip("_")))

    def moves(self) -> dict[str, Callable[[], Any]]:
        """Messages to the manager and its other events, by name; a `_` ends the name of a variant."""
        it, name = self.membership, INSTANCES[0]

        async def restart() -> None:
            self.start()

        async def register() -> None:
            self.incarnation += self.now() in (NONE, "gone") or self.random.random() < 0.5
            worker = Address(name=name, endpoint="tcp://127.0.0.1:1", incarnation=self.incarnation)
            message = RegisterInstance(instance=name, worker=worker, kind="preemptible", slots=1, received=0)
            await it.register(message, Peer("tcp://127.0.0.1:2"))

        async def lose() -> None:
            if (stream := self.state.streams.get(name)) is not None:
                await it.lose(name, stream.incarnation, "killed")

        def serving() -> Any:
            return it.serving(Serving(instance=name, incarnation=self.incarnation, version=1, root=b"r"))

        def withdraw(leaves: bool) -> Any:
            return it.withdraw(Withdraw(instance=name, grace_s=0.0, leaves=leaves))

        def cannot_take() -> Any:
            message = CannotTake(instance=name, incarnation=self.incarnation, tickets=[], why="", version=2)
            return it.cannot_take(message)

        def terminated() -> Any:
            return it.terminated(Terminated(name=name, incarnation=self.incarnation, cause="killed"))

        return {
            "RegisterInstance": register,
            "Serving": serving,
            "Serving_": serving,
            "Withdraw": lambda: withdraw(True),
            "Withdraw_": lambda: withdraw(False),
            "NewWork": lambda: it.new_work(NewWork(instance=name, allowed=True)),
            "NewWork_": lambda: it.new_work(NewWork(instance=name, allowed=False)),
            "CannotTake": cannot_take,
            "Terminated": terminated,
            "InstanceGone": lose,
            "restart": restart,
        }


async def instance_transitions() -> set[Transition]:
    """The transitions of an instance in many walks."""
    seen: set[Transition] = set()
    for seed in range(20):
        member = Member(seed)
        await member.walk(200)
        seen |= member.seen
    return seen


def rows(transitions: set[Transition]) -> Iterator[str]:
    """Rows of a table of docs/states.md."""
    events: dict[tuple[str, str], list[str]] = {}
    for old, new, event in sorted(transitions):
        events.setdefault((old, new), []).append(f"`{event}`")
    for (old, new), names in events.items():
        yield f"| {old} | {new} | {', '.join(names)} |"
