"""Laws of versions: tokens within their gates, spans with the right version."""

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st
from rollout_world import World, submission

from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.actors.rollout.state.events import Dispatched, RequestsDue, TicketsRenewed, VersionPublished
from gleaner.actors.rollout.state.request_log import RequestState
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.rollout.state.ticket_renewal import may_renew
from gleaner.actors.rollout.state.versions import MAX_KNOWN, Versions
from gleaner.supervisor import Message
from gleaner.supervisor.message import decode_body, encode_body, kind_of


def published(version: int, root: bytes = b"") -> VersionPublished:
    return VersionPublished(version=version, root=root or b"root-%d" % version, sources=("r/transfer",))


class VersionWorld(World):
    """A trainer that goes forward and back, and batches that are open ahead of it within the bound k."""

    def __init__(self, rng: random.Random, bound: int) -> None:
        super().__init__(rng)
        self.bound = bound
        self.version = self.highest = 0
        self.serves: dict[int, int] = {}  # the version of each incarnation
        # (incarnation, request, position) -> the generating version: one from which a request was taken back
        # still decodes it
        self.made: dict[tuple[int, str, int], int] = {}
        self.refused_versions = self.kept = 0

    def step_batch(self, step: int) -> BatchSubmitted:
        least = max(0, step - 1 - self.bound) if self.bound else None
        base = submission(f"step-{step}", version=step - 1)
        return BatchSubmitted(
            batch=base.batch,
            version=base.version,
            prompts=base.prompts,
            max_new_tokens=base.max_new_tokens,
            min_version=least,
        )

    def publish(self) -> None:
        back = self.version > 0 and self.rng.random() < 0.2
        self.version = self.rng.randrange(self.version) if back else self.version + 1
        self.highest = max(self.highest, self.version)
        self.apply(published(self.version))
        self.ahead()

    def ahead(self) -> None:
        for step in range(self.version + 1, self.version + 2 + self.bound):
            if f"step-{step}" not in self.state.log.batches and len(self.state.log.batches) < 12:
                self.apply(self.step_batch(step))

    def flip(self) -> None:
        """An instance loads the newest weights and reports its requests as aborted."""
        if self.engines:
            engine = self.rng.choice(list(self.engines.values()))
            engine.drain()
            self.serves[engine.incarnation] = self.version

    def keep(self) -> None:
        """An instance loads the newest weights and continues the requests that the state allows."""
        if not self.engines:
            return
        engine = self.rng.choice(list(self.engines.values()))
        while engine.made:  # its whole stream is journaled first
            self.apply(engine.made.pop(0))
        state, name, incarnation = self.state, engine.name, engine.incarnation
        stream = state.streams.alive(name, incarnation)
        if stream is None:
            return
        kept = may_renew(state.log, state.versions, stream, self.version, engine.tickets)
        renewed = TicketsRenewed(
            instance=name, incarnation=incarnation, version=self.version, tickets=tuple(kept)
        )
        assert not self.apply(renewed).refused
        stay = {ticket: engine.tickets.pop(ticket) for ticket in kept}
        engine.drain()
        engine.tickets |= stay
        self.kept += len(kept)
        self.serves[incarnation] = self.version

    def join(self) -> None:
        super().join()
        served = self.rng.randint(max(0, self.version - 2), self.highest)  # the version may be old or lost
        self.serves[self.incarnations] = served

    def dispatch(self) -> None:
        """Dispatch under the served version of the instance; the state decides whether the gates admit it."""
        queued = self.state.log.queued()
        if not queued or not self.engines:
            return
        engine = self.rng.choice(list(self.engines.values()))
        chosen = self.rng.sample(queued[:4], min(len(queued), 3))
        first = self.state.streams.next_ticket(engine.name, engine.incarnation)
        version = self.serves[engine.incarnation]
        changes = self.apply(
            Dispatched(
                instance=engine.name,
                incarnation=engine.incarnation,
                version=version,
                tickets=tuple(range(first, first + len(chosen))),
                requests=tuple(log.id for log in chosen),
            )
        )
        self.refused_versions += changes.refused.count("wrong_version")
        for ticket, log in enumerate(chosen, first):
            if log.state is RequestState.DISPATCHED:
                engine.tickets[ticket] = (log.id, len(log), True)

    def decode(self) -> None:
        if self.engines:
            engine = self.rng.choice(list(self.engines.values()))
            for request, position, _ in engine.tickets.values():
                self.made[engine.incarnation, request, position] = self.serves[engine.incarnation]
            engine.decode()

    def due(self) -> None:
        late = [name for name in self.state.log.requests if self.rng.random() < 0.02]
        self.apply(RequestsDue(requests=tuple(late)))

    def run(self, moves: int) -> None:
        self.apply(published(0))
        self.ahead()
        kinds = [self.join, self.dispatch, self.decode, self.deliver, self.flip, self.keep] * 3
        kinds += [self.publish, self.kill, self.revoke, self.score, self.due]
        for _ in range(moves):
            self.rng.choice(kinds)()


def lived(seed: int, moves: int, bound: int) -> VersionWorld:
    world = VersionWorld(random.Random(seed), bound)
    world.run(moves)
    return world


HISTORIES = st.tuples(st.integers(0, 2**32), st.integers(10, 120), st.integers(0, 3))


@settings(max_examples=60, deadline=None)
@given(HISTORIES)
def test_tokens_are_of_published_versions_within_the_bound(
    history: tuple[int, int, int],
) -> None:
    world = lived(*history)
    for log in world.state.log.requests.values():
        step = int(log.batch.partition("-")[2])
        for span in log.spans:
            assert max(0, step - 1 - world.bound) <= span.version <= world.highest
            if not world.bound:
                assert span.version == step - 1


@settings(max_examples=60, deadline=None)
@given(HISTORIES)
@example((594316, 79, 1))
def test_every_span_has_the_version_of_its_tokens(history: tuple[int, int, int]) -> None:
    world = lived(*history)
    for log in world.state.log.requests.values():
        for span in log.spans:
            positions = range(span.start, span.start + span.count)
            borne = {world.made[span.incarnation, log.id, at] for at in positions}
            assert borne == {span.version}


@settings(max_examples=60, deadline=None)
@given(HISTORIES, st.floats(0, 1))
def test_restarted_manager_knows_the_same_versions(history: tuple[int, int, int], where: float) -> None:
    def through_disk(event: Message) -> Message:
        return decode_body(kind_of(event), encode_body(event))

    world = lived(*history)
    cut = round(where * len(world.events))
    before, rebuilt = RolloutState(), RolloutState()
    for event in world.events[:cut]:
        before.apply(event)
    rebuilt.apply(through_disk(before.snapshot()))
    for event in world.events[cut:]:
        rebuilt.apply(through_disk(event))
    assert rebuilt.snapshot() == world.state.snapshot()
    assert rebuilt.versions.roots(0) == world.state.versions.roots(0)


def test_worlds_cover_refusals_flips_kept_requests_and_deadlines() -> None:
    worlds = [lived(seed, 120, 1 + seed % 2) for seed in range(20)]
    logs = [log for world in worlds for log in world.state.log.requests.values()]
    assert sum(world.refused_versions for world in worlds) > 10
    assert sum(world.kept for world in worlds) > 10
    assert sum(len({span.version for span in log.spans}) > 1 for log in logs) > 5
    assert sum(log.due and log.state is RequestState.FINISHED for log in logs) > 5


def test_lost_version_is_known_again_when_republished() -> None:
    versions = Versions()
    for version in (0, 1, 2, 3):
        versions.publish(published(version))
    versions.publish(published(1))
    assert versions.roots(0) == {0: b"root-0", 1: b"root-1"}
    assert versions.root(3) == b"root-3", "a lost version is kept: it may get another root"
    versions.publish(published(2))
    assert versions.roots(1) == {1: b"root-1", 2: b"root-2"}
    assert versions.newest == published(2)
    assert versions.highest == 3


def test_requests_of_a_lost_version_are_distinguished() -> None:
    world = VersionWorld(random.Random(0), bound=2)
    world.apply(published(0))
    world.apply(published(1))
    world.apply(world.step_batch(3))
    world.join()
    (engine,) = world.engines.values()
    world.serves[engine.incarnation] = 1
    world.dispatch()
    world.decode()
    for made in engine.made:
        world.apply(made)
    world.apply(published(0))
    assert not world.state.begun_under_others(1, b"root-1"), "equal bits are the same version"
    assert world.state.begun_under_others(1, b"other")
    assert not world.state.begun_under_others(2, b"other"), "no request has a token of version 2"


def test_known_versions_are_bounded() -> None:
    versions = Versions()
    for version in range(3 * MAX_KNOWN):
        versions.publish(published(version))
    assert len(versions.known) == MAX_KNOWN
    assert versions.newest == published(3 * MAX_KNOWN - 1)
