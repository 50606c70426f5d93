"""Drains: which requests are aborted and when, and when the drain of an instance is answered."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

from rollout_world import frame, submission

from gleaner.actors.protocol.instances import Abort, RegisterInstance, Withdrawn
from gleaner.actors.rollout.fleet.drain import ABORT_AGAIN_S, ABORT_LATE_S, Drains
from gleaner.actors.rollout.fleet.instance_table import Instance, Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.events import Dispatched, InstanceGone, InstanceJoined
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.rollout.state.tickets import ABORTED, FIRST, NO_TOKEN
from gleaner.supervisor import Address, Context, Deferred, Message
from gleaner.supervisor.virtual_time import VirtualLoop
from gleaner.supervisor.wait import idle

GRACE_S = 1.25
SHORT_S = 0.125  # times are sums of powers of two, so they are exact
START_S = 1024.0


class Site:
    """Instances whose requests end when the test says so, on virtual time that begins at `START_S`."""

    def __init__(self) -> None:
        self.state = RolloutState()
        self.state.apply(submission(groups=4, samples=2))
        self.instances = Instances()
        self.aborts: list[tuple[float, str, list[int]]] = []
        self.waits: list[tuple[str, str, float, bool]] = []
        self.answers: dict[str, tuple[float, int]] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.commit: asyncio.Event | None = None
        """Set when the journal has committed; None: at once."""
        self._seqs: dict[str, int] = {}
        self._looks = 0
        context = SimpleNamespace(now=self.now, tell=self._tell, background=self._background, wait=self._wait)
        journaled = SimpleNamespace(state=self.state, settled=self._settled)
        self.drains = Drains(cast("Context", context), cast("JournaledState", journaled))

    def now(self) -> float:
        self._looks += 1
        assert self._looks < 1000, "a drain does not wait between its looks"
        return START_S + asyncio.get_running_loop().time()

    async def _tell(self, to: Address, message: Message) -> None:
        assert isinstance(message, Abort)
        self.aborts.append((self.now() - START_S, to.name, message.tickets))

    def _background(self, work: Coroutine[object, object, None], what: str) -> None:
        self.tasks[what] = asyncio.ensure_future(work)

    @asynccontextmanager
    async def _wait(
        self, what: str, *, on: str, deadline_s: float, go_on: bool
    ) -> AsyncIterator[SimpleNamespace]:
        self.waits.append((what, on, deadline_s, go_on))
        yield SimpleNamespace(look=idle)

    async def _settled(self) -> None:
        if self.commit is not None:
            await self.commit.wait()

    def join(self, name: str, *, requests: int, started: int = 0, incarnation: int = 4) -> Instance:
        """An instance with that many requests, the first of which are executing."""
        self.state.apply(InstanceJoined(instance=name, incarnation=incarnation))
        self._seqs[name] = 0
        logs = self.state.log.queued()[:requests]
        event = Dispatched(
            instance=name,
            incarnation=incarnation,
            version=1,
            tickets=tuple(range(1, requests + 1)),
            requests=tuple(log.id for log in logs),
        )
        assert self.state.apply(event).refused == []
        self._rows(name, list(range(1, started + 1)), FIRST)
        worker = Address(name=name, endpoint="tcp://10.0.0.4:1", incarnation=incarnation)
        joining = RegisterInstance(instance=name, worker=worker, kind="preemptible", slots=8, received=0)
        return self.instances.register(joining, "1.1", 0.0)

    def begin(self, instance: Instance, grace_s: float = GRACE_S, call: str = "drain") -> Deferred:
        def answered(outcome: Message | Exception) -> None:
            assert isinstance(outcome, Withdrawn)
            self.answers[call] = self.now() - START_S, outcome.handed_over

        deferred = self.drains.begin(instance, grace_s)
        deferred.bind(answered)
        return deferred

    def end(self, name: str, *tickets: int, look: bool = True) -> None:
        """The instance reports that it has ended these."""
        self._rows(name, list(tickets), ABORTED | NO_TOKEN)
        if look:
            self.drains.look()

    def _rows(self, name: str, tickets: list[int], flags: int) -> None:
        if not tickets:
            return
        self._seqs[name] += 1
        rows = [(ticket, 70, -0.5, flags) for ticket in tickets]
        incarnation = self.state.streams[name].incarnation
        assert self.state.apply(frame(name, incarnation, self._seqs[name], rows)).refused == []

    def running(self) -> list[str]:
        return [what for what, task in self.tasks.items() if not task.done()]


def on_virtual_time(test: Callable[[Site], Coroutine[object, object, None]]) -> Site:
    """Runs it to its end, and sees that no task failed."""

    async def whole() -> Site:
        site = Site()
        await test(site)
        for task in site.tasks.values():
            if task.done():
                task.result()
            task.cancel()
        return site

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(whole())


def test_waiting_requests_are_aborted_at_once_and_executing_ones_after_the_grace() -> None:
    async def drain(site: Site) -> None:
        site.begin(site.join("spot", requests=4, started=2))
        await asyncio.sleep(SHORT_S)
        site.end("spot", 3, 4)
        await asyncio.sleep(GRACE_S)
        site.end("spot", 1, 2)
        await asyncio.sleep(SHORT_S)
        assert site.running() == []

    site = on_virtual_time(drain)
    assert site.aborts == [(0.0, "spot", [3, 4]), (GRACE_S, "spot", [1, 2])]
    assert site.answers == {"drain": (GRACE_S + SHORT_S, 4)}
    assert site.waits == [("requests to end", "spot", GRACE_S + ABORT_LATE_S, True)]


def test_executing_requests_that_end_within_the_grace_are_not_handed_over() -> None:
    async def drain(site: Site) -> None:
        site.begin(site.join("spot", requests=3, started=2))
        await asyncio.sleep(SHORT_S)
        site.end("spot", 3)
        await asyncio.sleep(0.5)
        site.end("spot", 1)
        assert site.answers == {}, "one request executes"
        await asyncio.sleep(SHORT_S)
        site.end("spot", 2)
        await asyncio.sleep(2 * GRACE_S)

    site = on_virtual_time(drain)
    assert site.aborts == [(0.0, "spot", [3])]
    assert site.answers == {"drain": (0.5 + 2 * SHORT_S, 1)}


def test_abort_is_repeated_until_the_stream_reports_the_end_and_counted_once() -> None:
    async def drain(site: Site) -> None:
        site.begin(site.join("spot", requests=2, started=1))
        await asyncio.sleep(GRACE_S + ABORT_AGAIN_S + SHORT_S)
        site.end("spot", 1)
        await asyncio.sleep(ABORT_AGAIN_S + SHORT_S)
        site.end("spot", 2)
        await asyncio.sleep(4 * ABORT_AGAIN_S)

    site = on_virtual_time(drain)
    before = [(times * ABORT_AGAIN_S, [2]) for times in range(3)]
    late = [(GRACE_S + times * ABORT_AGAIN_S, [1, 2]) for times in range(2)]
    ended_s = GRACE_S + ABORT_AGAIN_S + SHORT_S
    left = [(ended_s + times * ABORT_AGAIN_S, [2]) for times in range(2)]
    assert [(when_s, tickets) for when_s, _, tickets in site.aborts] == before + late + left
    assert site.answers == {"drain": (ended_s + ABORT_AGAIN_S + SHORT_S, 2)}


def test_drain_without_requests_sends_nothing_and_is_answered_when_the_journal_has_settled() -> None:
    async def drain(site: Site) -> None:
        site.commit = asyncio.Event()
        site.begin(site.join("spot", requests=0))
        await asyncio.sleep(3.0)
        assert site.answers == {}, "its host may end upon the answer"
        site.commit.set()
        await asyncio.sleep(SHORT_S)

    site = on_virtual_time(drain)
    assert site.aborts == []
    assert site.answers == {"drain": (3.0, 0)}


def test_drain_is_answered_when_the_instance_is_gone_or_unknown() -> None:
    async def drain(site: Site) -> None:
        site.begin(site.join("gone", requests=2, started=2), call="gone")
        unknown = site.join("unknown", requests=0)
        del site.state.streams["unknown"]
        site.begin(unknown, call="unknown")
        await asyncio.sleep(SHORT_S)
        site.state.apply(InstanceGone(instance="gone", incarnation=4, cause="killed"))
        site.drains.look()
        await asyncio.sleep(2 * GRACE_S)

    site = on_virtual_time(drain)
    assert site.answers == {"unknown": (0.0, 0), "gone": (SHORT_S, 0)}
    assert site.aborts == []


def test_end_is_noticed_at_the_next_abort_when_it_was_not_reported() -> None:
    async def drain(site: Site) -> None:
        site.begin(site.join("spot", requests=1))
        await asyncio.sleep(SHORT_S)
        site.end("spot", 1, look=False)
        await asyncio.sleep(2 * GRACE_S)

    assert on_virtual_time(drain).answers == {"drain": (ABORT_AGAIN_S, 1)}


def test_answer_is_given_within_the_look_that_finds_the_instance_empty() -> None:
    async def drain(site: Site) -> None:
        site.begin(site.join("spot", requests=1))
        await asyncio.sleep(SHORT_S)
        site.end("spot", 1)
        assert "end of the drain of spot" in site.tasks, "not only when the drain has its turn"
        await asyncio.sleep(SHORT_S)

    assert on_virtual_time(drain).answers == {"drain": (SHORT_S, 1)}


def test_drain_goes_on_while_another_one_ends() -> None:
    async def drain(site: Site) -> None:
        site.begin(site.join("one", requests=1), call="one")
        site.begin(site.join("other", requests=1, started=1), call="other")
        await asyncio.sleep(SHORT_S)
        site.end("one", 1)
        await asyncio.sleep(GRACE_S)
        site.end("other", 1)
        await asyncio.sleep(SHORT_S)

    site = on_virtual_time(drain)
    assert site.aborts == [(0.0, "one", [1]), (GRACE_S, "other", [1])]
    assert site.answers == {"one": (SHORT_S, 1), "other": (GRACE_S + SHORT_S, 1)}


def test_next_incarnation_gets_no_abort_of_the_former_one() -> None:
    async def drain(site: Site) -> None:
        site.begin(site.join("spot", requests=1, started=1))
        await asyncio.sleep(SHORT_S)
        site.join("spot", requests=1, incarnation=5)
        await asyncio.sleep(2 * GRACE_S)

    assert on_virtual_time(drain).aborts == []


def test_drain_that_is_called_off_is_answered_and_aborts_nothing_more() -> None:
    async def drain(site: Site) -> None:
        site.begin(site.join("spot", requests=3, started=2))
        site.begin(site.join("other", requests=1, started=1), call="other")
        await asyncio.sleep(SHORT_S)
        site.drains.call_off("spot")
        site.drains.call_off("unknown")
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)
        assert site.running() == ["withdraw other"], "it ends at once"
        await asyncio.sleep(2 * GRACE_S)

    site = on_virtual_time(drain)
    assert site.answers == {"drain": (SHORT_S, 1)}
    assert {(name, *tickets) for _, name, tickets in site.aborts} == {("spot", 3), ("other", 1)}


def test_second_drain_of_an_instance_answers_the_first_and_has_its_own_grace() -> None:
    async def drain(site: Site) -> None:
        instance = site.join("spot", requests=2, started=1)
        site.begin(instance, 10.0, call="first")
        await asyncio.sleep(SHORT_S)
        site.begin(instance, 0.0, call="second")
        await asyncio.sleep(SHORT_S)
        assert site.answers == {"first": (SHORT_S, 1)}
        site.end("spot", 1, 2)
        await asyncio.sleep(SHORT_S)
        assert site.running() == []

    site = on_virtual_time(drain)
    assert site.aborts == [(0.0, "spot", [2]), (SHORT_S, "spot", [1, 2])]
    assert site.answers["second"] == (2 * SHORT_S, 2)
