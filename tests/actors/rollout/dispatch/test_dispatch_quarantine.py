"""Quarantine: when a suspect runs alone, on which instance, and when that instance serves all again."""

import logging
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from rollout_world import frame, submission

from gleaner.actors.names import BALANCER
from gleaner.actors.protocol.balancer import InstanceServes
from gleaner.actors.protocol.instances import RegisterInstance
from gleaner.actors.rollout.dispatch import quarantine
from gleaner.actors.rollout.dispatch.quarantine import Quarantine
from gleaner.actors.rollout.dispatch.suspect_policy import LONE_DEATHS, SOON_S, SUSPECT_AFTER
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.events import BatchReleased, Dispatched, InstanceGone, InstanceJoined
from gleaner.actors.rollout.state.request_log import RequestLog
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.rollout.state.tickets import ABORTED, FINISHED, FIRST, NO_TOKEN
from gleaner.supervisor import Address, Context, Message

ROOTS = {1: b"one"}
LATER_S = 10 * SOON_S


class Fleet:
    """Instances that serve version 1, requests that the test sends to them, and the quarantine of both."""

    def __init__(self, *instances: str) -> None:
        self.now_s = 0.0
        self.state, self.instances = RolloutState(), Instances()
        self.sent: list[tuple[str, int, int | None, bytes]] = []
        context = SimpleNamespace(
            now=lambda: self.now_s, tell=self._tell, log=logging.getLogger("quarantine")
        )
        journaled = cast("JournaledState", SimpleNamespace(state=self.state))
        self.quarantine = Quarantine(cast("Context", context), journaled, self.instances)
        self._incarnations = 0
        self._seqs: dict[str, int] = {}
        for name in instances:
            self.join(name)

    async def _tell(self, to: str, message: Message) -> None:
        assert to == BALANCER
        assert isinstance(message, InstanceServes)
        self.sent.append((message.instance, message.incarnation, message.version, message.root))

    def join(self, name: str) -> None:
        self._incarnations += 1
        self._seqs[name] = 0
        worker = Address(name=name, endpoint="tcp://10.0.0.4:1", incarnation=self._incarnations)
        joining = RegisterInstance(instance=name, worker=worker, kind="preemptible", slots=8, received=0)
        self.instances.register(joining, "1.1", self.now_s)
        self.serve(name, 1, b"one")
        self.state.apply(InstanceJoined(instance=name, incarnation=self._incarnations))

    def serve(self, name: str, version: int | None, root: bytes = b"") -> None:
        self.instances[name].version, self.instances[name].root = version, root

    def single(self, name: str) -> RequestLog:
        """A request of a caller, which waits."""
        asked = msgspec.structs.replace(submission(name, groups=1, samples=1), scored=False)
        assert self.state.apply(asked).refused == []
        return self.state.log.batches[name].groups[0][0]

    def send(self, instance: str, *logs: RequestLog) -> None:
        stream = self.state.streams[instance]
        event = Dispatched(
            instance=instance,
            incarnation=stream.incarnation,
            version=1,
            tickets=tuple(range(stream.next_ticket, stream.next_ticket + len(logs))),
            requests=tuple(log.id for log in logs),
        )
        assert self.state.apply(event).refused == []
        self.quarantine.sent(list(logs))

    def rows(self, instance: str, flags: int) -> None:
        """One row of each request of the instance."""
        stream = self.state.streams[instance]
        self._seqs[instance] += 1
        rows = [(ticket, 70, -0.5, flags) for ticket in stream.live()]
        event = frame(instance, stream.incarnation, self._seqs[instance], rows)
        assert self.state.apply(event).refused == []

    def die(self, name: str, *, after_s: float = 1.0) -> list[str]:
        """It dies and is there again, long before anything else happens. Returns the requests to end."""
        self.now_s += after_s
        stream = self.state.streams[name]
        ended = self.quarantine.died(name, stream)
        gone = InstanceGone(instance=name, incarnation=stream.incarnation, cause="killed")
        assert self.state.apply(gone).refused == []
        self.join(name)
        self.now_s += LATER_S
        return ended

    def kill(self, name: str, *logs: RequestLog) -> list[str]:
        """These requests are sent to the instance, which dies at once."""
        self.send(name, *logs)
        return self.die(name)

    def suspected(self, name: str = "deadly") -> RequestLog:
        """A request that has to run alone, since its neighbour and itself were on instances that died."""
        log, beside = self.single(name), self.single(f"beside-{name}")
        for _ in range(SUSPECT_AFTER):
            self.kill("a", log, beside)
        self.state.apply(BatchReleased(batch=beside.batch))
        assert self.suspect(name)
        return log

    def suspect(self, batch: str) -> bool:
        return self.quarantine.suspect(batch) is not None

    async def room(self, log: RequestLog, roots: dict[int, bytes] = ROOTS) -> str | None:
        instance = await self.quarantine.room(log, roots)
        return None if instance is None else instance.name

    async def kept(self, log: RequestLog) -> str:
        """The instance that is kept free for this request from now on."""
        name = await self.room(log)
        assert name is not None
        self.sent.clear()
        return name

    def serves(self, name: str) -> tuple[str, int, int | None, bytes]:
        """What the balancer gets when the instance serves all again."""
        instance = self.instances[name]
        return name, instance.incarnation, instance.version, instance.root

    def serves_nothing(self, name: str) -> tuple[str, int, int | None, bytes]:
        return name, self.instances[name].incarnation, None, b""


def test_request_is_a_suspect_when_two_instances_died_soon_after_they_got_it() -> None:
    fleet = Fleet("a", "b")
    log = fleet.single("deadly")
    assert not fleet.suspect("deadly")
    assert fleet.kill("a", log) == []
    assert not fleet.suspect("deadly")
    fleet.kill("b", log)
    assert fleet.quarantine.suspect("deadly") is log
    fleet.send("a", log)
    assert not fleet.suspect("deadly"), "it waits no more"


def test_death_does_not_count_when_it_comes_late_and_time_starts_anew_with_each_dispatch() -> None:
    fleet = Fleet("a")
    log = fleet.single("long")
    for _ in range(2 * SUSPECT_AFTER):
        fleet.send("a", log)
        fleet.die("a", after_s=2 * SOON_S)
    assert not fleet.suspect("long")
    for _ in range(SUSPECT_AFTER):
        fleet.kill("a", log)
    assert fleet.suspect("long")


def test_request_of_a_scored_batch_is_never_a_suspect() -> None:
    fleet = Fleet("a")
    fleet.state.apply(submission(groups=1, samples=1))
    log = fleet.state.log.batches["step-1"].groups[0][0]
    for _ in range(LONE_DEATHS + 1):
        assert fleet.kill("a", log) == []
        assert not fleet.suspect("step-1")


def test_tokens_of_earlier_instances_do_not_clear_a_request_and_a_token_there_does() -> None:
    fleet = Fleet("a")
    log = fleet.single("deadly")
    fleet.send("a", log)
    fleet.rows("a", FIRST)
    fleet.die("a")
    for _ in range(SUSPECT_AFTER):
        assert not fleet.suspect("deadly")
        fleet.kill("a", log)
    assert fleet.suspect("deadly")
    fleet.send("a", log)
    fleet.rows("a", FIRST)
    fleet.die("a")
    assert not fleet.suspect("deadly")
    fleet.kill("a", log)
    assert not fleet.suspect("deadly"), "the deaths before its token are forgotten"


def test_only_requests_sent_most_recently_are_remembered_beyond_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quarantine, "MAX_KNOWN", 2)
    fleet = Fleet("a", "b", "c")
    logs = [fleet.single(name) for name in ("old", "again", "new")]
    old, again, new = logs
    for _ in range(SUSPECT_AFTER):
        fleet.send("a", again)
        fleet.send("b", old)
        fleet.rows("a", ABORTED | NO_TOKEN)
        fleet.send("a", again)
        fleet.send("c", new)
        fleet.now_s += 1.0
        for name in ("a", "b", "c"):
            fleet.quarantine.died(name, fleet.state.streams[name])
        for name in ("a", "b", "c"):
            fleet.die(name, after_s=2 * SOON_S)
    assert [fleet.suspect(log.batch) for log in logs] == [False, True, True]


async def test_request_that_is_over_starts_from_zero() -> None:
    fleet = Fleet("a")
    log = fleet.suspected()
    fleet.quarantine.forget(log.id)
    assert not fleet.suspect("deadly")
    fleet.send("a", log)
    fleet.quarantine.forget(log.id)
    fleet.die("a")
    fleet.kill("a", log)
    assert not fleet.suspect("deadly"), "the death after its end does not count"


async def test_request_is_ended_after_deaths_alone_and_gets_no_instance_until_it_is_over() -> None:
    fleet = Fleet("a")
    log, other = fleet.single("deadly"), fleet.single("other")
    for _ in range(LONE_DEATHS - 1):
        assert fleet.kill("a", log) == []
    assert fleet.kill("a", log) == [log.id]
    assert await fleet.room(log) is None
    assert fleet.sent == [], "no instance is kept free for it"
    assert await fleet.room(other) == "a"
    fleet.quarantine.forget(log.id)
    fleet.quarantine.forget(other.id)
    await fleet.quarantine.look()
    assert await fleet.room(log) == "a"


def test_death_counts_nothing_against_requests_that_are_gone_or_on_other_instances() -> None:
    fleet = Fleet("a", "b")
    gone, other = fleet.single("gone"), fleet.single("other")
    for _ in range(SUSPECT_AFTER):
        fleet.send("a", gone)
        fleet.send("b", other)
        stream = fleet.state.streams["a"]
        fleet.now_s += 1.0
        del fleet.state.log.requests[gone.id]
        assert fleet.quarantine.died("a", stream) == []
        fleet.state.log.requests[gone.id] = gone
        for name in ("a", "b"):
            fleet.die(name, after_s=2 * SOON_S)
    assert not fleet.suspect("gone")
    assert not fleet.suspect("other")


async def test_suspect_gets_the_least_loaded_instance_when_that_is_empty() -> None:
    fleet = Fleet("a", "b")
    log = fleet.suspected()
    busy = [fleet.single(f"busy-{number}") for number in range(3)]
    fleet.send("a", *busy[:2])
    fleet.send("b", busy[2])
    assert await fleet.room(log) is None
    assert fleet.sent == [fleet.serves_nothing("b")]
    fleet.rows("a", FIRST | FINISHED)
    assert await fleet.room(log) is None, "the instance that is kept has a request yet"
    fleet.rows("b", FIRST | FINISHED)
    assert await fleet.room(log) == "b"
    assert fleet.sent == [fleet.serves_nothing("b")], "the balancer gets it once"


async def test_no_instance_is_kept_free_when_none_serves_the_weights_and_lives() -> None:
    fleet = Fleet("other-version", "other-root", "nothing", "fenced", "a")
    log = fleet.suspected()
    fleet.serve("other-version", 2, b"one")
    fleet.serve("other-root", 1, b"two")
    fleet.serve("nothing", None)
    incarnation = fleet.instances["fenced"].incarnation
    fleet.state.apply(InstanceGone(instance="fenced", incarnation=incarnation, cause="killed"))
    fleet.serve("a", None)
    assert await fleet.room(log) is None
    assert fleet.sent == []
    fleet.serve("a", 1, b"one")
    assert await fleet.room(log) == "a"


async def test_one_suspect_runs_at_a_time() -> None:
    fleet = Fleet("a", "b", "c")
    first, second = fleet.suspected("first"), fleet.suspected("second")
    name = await fleet.kept(first)
    assert await fleet.room(second) is None
    fleet.send(name, first)
    await fleet.quarantine.look()
    assert await fleet.room(second) is None
    assert fleet.sent == []
    fleet.rows(name, FIRST)
    await fleet.quarantine.look()
    assert fleet.sent == [fleet.serves(name)], "a token shows that it kills no engine"
    fleet.sent.clear()
    other = await fleet.room(second)
    assert fleet.sent == [fleet.serves_nothing(str(other))]
    assert other not in (name, None)


async def test_instance_is_kept_while_the_suspect_waits_or_runs_without_a_token() -> None:
    fleet = Fleet("a", "b")
    log = fleet.single("deadly")
    fleet.send("a", log)
    fleet.rows("a", FIRST)
    fleet.die("a")
    for _ in range(SUSPECT_AFTER):
        fleet.kill("a", log)
    name = await fleet.kept(log)
    await fleet.quarantine.look()
    assert await fleet.room(log) == name, "it waits"
    fleet.send(name, log)
    await fleet.quarantine.look()
    assert fleet.sent == [], "its tokens were made elsewhere"
    assert await fleet.room(fleet.single("other")) is None
    fleet.rows(name, FIRST | FINISHED)
    await fleet.quarantine.look()
    assert fleet.sent == [fleet.serves(name)], "it is over"
    await fleet.quarantine.look()
    assert fleet.sent == [fleet.serves(name)], "the instance is given back once"


async def test_instance_serves_all_again_when_its_request_is_closed_or_no_suspect() -> None:
    for closed in (True, False):
        fleet = Fleet("a", "b")
        log = fleet.suspected()
        name = await fleet.kept(log)
        if closed:
            fleet.state.apply(BatchReleased(batch=log.batch))
        else:
            fleet.quarantine.forget(log.id)
        await fleet.quarantine.look()
        assert fleet.sent == [fleet.serves(name)], closed


async def test_nothing_is_sent_of_an_instance_that_is_gone_or_serves_nothing() -> None:
    for gone in (True, False):
        fleet = Fleet("a", "b")
        log = fleet.suspected()
        name = await fleet.kept(log)
        if gone:
            del fleet.instances[name]
        else:
            fleet.serve(name, None)
        await fleet.quarantine.look()
        assert fleet.sent == [], gone
        other = await fleet.room(log)
        assert other not in (name, None), "another one is kept instead"
        assert fleet.sent == [fleet.serves_nothing(str(other))]


async def test_another_suspect_waits_while_the_kept_instance_is_gone_and_not_looked_at() -> None:
    fleet = Fleet("a", "b")
    first, second = fleet.suspected("first"), fleet.suspected("second")
    del fleet.instances[await fleet.kept(first)]
    assert await fleet.room(second) is None
    await fleet.quarantine.look()
    assert await fleet.room(second) is not None


async def test_next_incarnation_of_a_kept_instance_is_kept_anew() -> None:
    fleet = Fleet("a")
    log = fleet.suspected()
    assert await fleet.kept(log) == "a"
    fleet.join("a")
    assert await fleet.room(log) == "a"
    assert fleet.sent == [fleet.serves_nothing("a")], "the new one served all until now"


async def test_other_instance_is_kept_when_the_first_serves_other_weights() -> None:
    fleet = Fleet("a", "b")
    log = fleet.suspected()
    name = await fleet.kept(log)
    other = "b" if name == "a" else "a"
    fleet.serve(name, 2, b"two")
    assert await fleet.room(log) == other
    assert fleet.sent == [fleet.serves(name), fleet.serves_nothing(other)]


async def test_instance_that_is_kept_free_serves_nothing_when_it_reports_newer_weights() -> None:
    fleet, roots = Fleet("a", "b"), {1: b"one", 2: b"two"}
    log = fleet.suspected()
    name = await fleet.kept(log)
    other = "b" if name == "a" else "a"
    for instance in (name, other):
        fleet.serve(instance, 2, b"two")
    reports = {one: fleet.quarantine.report(fleet.instances[one]) for one in (name, other)}
    assert reports[name].version is None
    assert (reports[other].version, reports[other].root) == (2, b"two")
    assert await fleet.room(log, roots) == name, "it is kept: it serves what the request may have"
    fleet.send(name, log)
    fleet.rows(name, FIRST)
    await fleet.quarantine.look()
    assert fleet.sent == [fleet.serves(name)], "the request has a token, so the instance serves all again"
    assert fleet.quarantine.report(fleet.instances[name]).version == 2
