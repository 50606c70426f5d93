"""Names: one lease per process, claimed on change, renewed together, fenced."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.supervisor import (
    Actor,
    AskTimeout,
    Deferred,
    Done,
    Message,
    ProcessIdentity,
    Registry,
    SystemPorts,
    handles,
)
from gleaner.supervisor.actor_test_kit import ActorTestKit
from gleaner.supervisor.address import Address, Incarnations
from gleaner.supervisor.journal.memory import MemoryJournal
from gleaner.supervisor.journal.port import Journal
from gleaner.supervisor.journal.sqlite import SqliteJournal
from gleaner.supervisor.mailbox import Lane
from gleaner.supervisor.message import encode_body
from gleaner.supervisor.names.client import CANDIDATE_S, CLAIM_NAMES, REGISTRY, Names
from gleaner.supervisor.names.leases import Digest, Leases
from gleaner.supervisor.names.registry import NameFenced
from gleaner.supervisor.network import Network
from gleaner.supervisor.system import ActorSystem
from gleaner.supervisor.system_messages import ClaimNames, Found, LeaseGranted, Lookup, RenewLease
from gleaner.supervisor.testing import TEST_LIMITS, TestSystem
from gleaner.transport.envelope import decode
from gleaner.transport.wire import MAX_FRAME_BYTES, Peer, Route, Sent

LEASE_S = 1.0


class Poke(Message, frozen=True):
    """A request that any living actor answers."""


class SpawnChild(Message, frozen=True):
    """Spawn a child."""

    name: str
    register: bool


class Named(Actor):
    @handles(Poke)
    async def poke(self, _message: Poke) -> None:
        return

    @handles(SpawnChild)
    async def spawn(self, message: SpawnChild) -> None:
        self.ctx.spawn(message.name, Named, register=message.register)


class Reader(Actor):
    """Has read the registry's journal."""

    async def on_start(self) -> None:
        self.fences = [
            (event.name, event.incarnation)
            async for event in self.ctx.journal.replay()
            if isinstance(event, NameFenced)
        ]


# -- the policy --


def claim(
    leases: Leases,
    endpoint: str,
    names: dict[str, int],
    now: float,
    *,
    first: bool = False,
    ended: dict[str, int] | None = None,
) -> tuple[dict[str, int], dict[str, int], bool]:
    claimed = leases.claim(endpoint, "", 1, names, ended or {}, now, first=first)
    return claimed.taken, claimed.superseded, claimed.again


def digest_of(names: dict[str, int]) -> Digest:
    digest = Digest()
    for name, incarnation in names.items():
        digest.add(name, incarnation)
    return digest


NAMES = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9))


@given(st.lists(st.tuples(st.sampled_from(["one", "two", "three"]), NAMES, st.booleans()), max_size=30))
def test_name_is_held_only_by_its_highest_incarnation(
    claims: list[tuple[str, dict[str, int], bool]],
) -> None:
    leases = Leases(LEASE_S)
    highest: dict[str, int] = {}
    for endpoint, names, first in claims:
        taken, superseded, again = claim(leases, endpoint, names, 0.0, first=first)
        if again:
            assert not first
            continue
        for name, incarnation in names.items():
            assert (name in superseded) == (incarnation < highest.get(name, 0))
            assert (name in taken) == (incarnation > highest.get(name, 0))
            highest[name] = max(highest.get(name, 0), incarnation)
        for name, top in highest.items():
            held = leases.find(name, 0.5)
            assert held is None or held.incarnation == top
        for endpoint_, holder in leases._holders.items():
            assert holder.endpoint == endpoint_
            assert holder.digest == digest_of(holder.names), "the digest follows every change"


@settings(max_examples=50)
@given(st.data())
def test_forgotten_name_cannot_return_with_an_old_incarnation(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gleaner.supervisor.names.leases.MAX_NAMES", 20)
        leases = Leases(LEASE_S)
        gone: list[tuple[str, int]] = []
        for number in range(1, 60):
            names = {f"name-{number}": number}
            taken, _, _ = claim(leases, "one", names, 0.0, first=number == 1)
            assert taken == names
            if data.draw(st.booleans()) or len(leases._held) > 10:
                held = data.draw(st.sampled_from(sorted(leases._held)))
                address = leases.find(held, 0.0)
                assert address is not None
                leases.release(held, address.incarnation)
                gone.append((held, address.incarnation))
        assert len(leases.highest) <= 20
        for name, incarnation in gone:
            taken, superseded, _ = claim(leases, "two", {name: incarnation - 1}, 0.0, first=True)
            assert not taken
            assert superseded[name] >= incarnation
        for name in leases._held:
            assert name in leases.highest, "a held name is never forgotten"


def test_renewal_of_unknown_names_requests_a_full_claim() -> None:
    leases = Leases(LEASE_S)
    names = {"a": 1, "b": 2}
    assert leases.renew("one", 1, digest_of(names), 0.0).again
    claim(leases, "one", names, 0.0, first=True)
    assert not leases.renew("one", 1, digest_of(names), 0.5).again
    assert leases.renew("one", 1, digest_of({"a": 1}), 0.5).again
    assert leases.renew("one", 2, digest_of(names), 0.5).again, "another life of the process"
    assert leases.find("a", 1.4) is not None
    assert leases.find("a", 1.6) is None
    assert claim(leases, "two", {"c": 3}, 0.0) == ({}, {}, True)


def test_shortened_lease_keeps_its_promise_until_next_renewal() -> None:
    leases = Leases(10.0)
    names = {"a": 1}
    claim(leases, "one", names, 0.0, first=True)
    leases.lease_s = 2.0
    assert leases.find("a", 9.9) is not None, "the holder was to renew within a third of ten seconds"
    assert not leases.renew("one", 1, digest_of(names), 3.0).again
    assert leases.find("a", 12.9) is not None
    assert not leases.renew("one", 1, digest_of(names), 3.6).again
    assert leases.find("a", 5.5) is not None
    assert leases.find("a", 5.7) is None


def test_superseded_holder_learns_it_with_its_renewal() -> None:
    leases = Leases(LEASE_S)
    claim(leases, "one", {"a": 1, "b": 2}, 0.0, first=True)
    claim(leases, "two", {"a": 5}, 0.0, first=True)
    renewed = leases.renew("one", 1, digest_of({"a": 1, "b": 2}), 0.1)
    assert renewed.superseded == {"a": 5}
    assert not leases.renew("one", 1, digest_of({"b": 2}), 0.2).again


# -- in a cluster --


async def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """The requests to the registry, in order."""
    asked: list[Message] = []
    real = ActorSystem.ask

    async def ask(self: ActorSystem, to: object, message: Message, **options: object) -> object:
        asked.append(message)
        return await real(self, to, message, **options)  # type: ignore[arg-type, call-overload]

    monkeypatch.setattr(ActorSystem, "ask", ask)
    return asked


async def test_thousands_of_names_are_renewed_by_one_message(tmp_path: Path, requests: list[Message]) -> None:
    count = 2 * CLAIM_NAMES + 500
    async with TestSystem(tmp_path) as head, TestSystem(tmp_path, node="other", join=head) as other:
        for number in range(count):
            other.spawn(f"named-{number}", Named)
        found = await head.ask(f"named-{count - 1}", Poke(), Done)
        assert isinstance(found, Done)
        asked = [
            message for message in requests if isinstance(message, ClaimNames) and len(message.names) > 1
        ]
        claims = {
            min(message.names): message for message in asked
        }.values()  # an answer that is late causes another request
        assert len(claims) == 3
        assert sum(len(message.names) for message in claims) == count
        assert max(len(encode_body(message)) for message in claims) < MAX_FRAME_BYTES / 16
        await until(lambda: not other.system.names._new)  # the answer to the last one came in time
        requests.clear()
        await asyncio.sleep(2 * TEST_LIMITS.lease_s)
        kinds = Counter(type(message) for message in requests)
        assert set(kinds) == {RenewLease}
        assert 6 <= kinds[RenewLease] <= 16, "each process renews every third of a lease"
        assert max(len(encode_body(message)) for message in requests) < 200
        other.kill("named-7")
        await until(lambda: any(isinstance(message, ClaimNames) for message in requests))
        (ended,) = [message for message in requests if isinstance(message, ClaimNames)]
        assert list(ended.ended) == ["named-7"]
        assert not ended.names


async def test_name_is_free_when_its_actor_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gleaner.supervisor.testing.TEST_LIMITS", replace(TEST_LIMITS, lease_s=600.0))
    async with TestSystem(tmp_path) as head, TestSystem(tmp_path, node="other", join=head) as other:
        other.spawn("named", Named)
        await head.ask("named", Poke(), Done)
        other.kill("named")
        async with asyncio.timeout(60):  # much sooner than its lease ends
            while (await head.ask(REGISTRY, Lookup(name="named"), Found)).address is not None:
                await asyncio.sleep(0.01)


def test_repeated_claim_is_fenced_once() -> None:
    """A restarted registry does not know the claimant: the fence comes with the claim that counts."""
    journal = MemoryJournal()
    with ActorTestKit(lambda: Registry(lambda: 2.0), journal=journal) as stage:
        later = ClaimNames(endpoint="tcp://10.0.0.1:1", life=7, names={"a": 12}, ended={}, first=False)
        assert stage.ask(later, LeaseGranted).claim_again
        first = msgspec.structs.replace(later, names={"a": 12, "b": 9}, first=True)
        assert not stage.ask(first, LeaseGranted).claim_again
        assert stage.ask(msgspec.structs.replace(later, names={"a": 13}), LeaseGranted).superseded == {}
        stage.crash()
        assert stage.ask(msgspec.structs.replace(later, names={"c": 9}), LeaseGranted).claim_again
    with ActorTestKit(Reader, journal=journal) as stage:
        reader = stage.actor
        assert isinstance(reader, Reader)
        assert reader.fences == [("a", 12), ("b", 9), ("a", 13)]


async def test_names_survive_the_death_of_the_registry(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as head, TestSystem(tmp_path, node="other", join=head) as other:
        for number in range(20):
            other.spawn(f"named-{number}", Named)
        await head.ask("named-3", Poke(), Done)
        head.kill(REGISTRY)
        head.spawn(REGISTRY, lambda: Registry(lambda: TEST_LIMITS.lease_s))
        head.system.names.forget("named-9")
        await head.ask("named-9", Poke(), Done)
        other.spawn("later", Named)
        await head.ask("later", Poke(), Done)


async def test_lookup_waits_while_its_local_registry_restarts(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as head, TestSystem(tmp_path, node="other", join=head) as other:
        other.spawn("named", Named)
        await head.ask("named", Poke(), Done)
        head.kill(REGISTRY)
        head.system.names.forget("named")
        asked = asyncio.create_task(head.ask("named", Poke(), Done))
        await asyncio.sleep(0.3)
        assert not asked.done()
        head.spawn(REGISTRY, lambda: Registry(lambda: TEST_LIMITS.lease_s))
        await asked


async def test_overloaded_registry_is_asked_until_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.supervisor.mailbox.SYSTEM_LIMIT", 8)
    free = asyncio.Event()

    class Busy(Registry):
        @handles(Lookup, lane=Lane.SYSTEM)
        async def lookup(self, message: Lookup) -> Found:
            await free.wait()
            return await super().lookup(message)

    async with TestSystem(tmp_path) as head, TestSystem(tmp_path, node="other", join=head) as other:
        head.kill(REGISTRY)
        head.spawn(REGISTRY, lambda: Busy(lambda: TEST_LIMITS.lease_s))
        registry = head.system.cell(REGISTRY)
        assert registry is not None
        other.spawn("named", Named)
        await until(lambda: "named" in other.system.names._claimed)
        flood = [asyncio.create_task(head.ask(REGISTRY, Lookup(name="nobody"), Found)) for _ in range(9)]
        await until(lambda: len(registry.mailbox) >= 8)
        asked = asyncio.create_task(head.ask("named", Poke(), Done))
        refused = registry.dropped
        await until(lambda: registry.dropped > refused or asked.done())
        other.spawn("later", Named)
        await until(lambda: "messages wait" in other.system.names._unable)
        assert not asked.done()
        free.set()
        assert await asked == Done()
        assert await head.ask("later", Poke(), Done) == Done()
        assert other.system.names._unable == ""
        await asyncio.gather(*flood, return_exceptions=True)


async def test_registry_without_space_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    claims = 0

    class Full(Registry):
        async def _fence(self, _claims: Sequence[ClaimNames]) -> bool:
            nonlocal claims
            claims += 1
            self._unable = "the registry takes no new names: no space"
            return False

    async with TestSystem(tmp_path) as head, TestSystem(tmp_path, node="other", join=head) as other:
        head.kill(REGISTRY)
        head.spawn(REGISTRY, lambda: Full(lambda: TEST_LIMITS.lease_s))
        other.spawn("named", Named)
        await until(lambda: claims >= 6)  # of two systems
        reports = [line for line in caplog.messages if "are not found by name: the registry" in line]
        assert 1 <= len(reports) <= 2, "one of each system"


async def test_actor_ending_during_its_claim_loses_the_name(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as head, TestSystem(tmp_path, node="other", join=head) as other:
        other.spawn("stays", Named)
        await head.ask("stays", Poke(), Done)
        for number in range(30):
            other.spawn(f"short-{number}", Named)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            other.kill(f"short-{number}")
        await until(lambda: not other.system.names._ended and not other.system.names._new)
        assert list(other.system.names._claimed) == ["stays"]
        assert other.system.names._digest == digest_of(other.system.names._claimed)


async def test_child_is_registered_by_name_only_on_request(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as head, TestSystem(tmp_path, node="other", join=head) as other:
        other.spawn("parent", Named)
        await head.ask("parent", SpawnChild(name="hidden", register=False), Done)
        await head.ask("parent", SpawnChild(name="shown", register=True), Done)
        await head.ask("shown", Poke(), Done)
        await other.ask("hidden", Poke(), Done)
        with pytest.raises(AskTimeout):
            await head.ask("hidden", Poke(), Done, deadline_s=0.3)
        hidden = other.system.cell("hidden")
        assert hidden is not None
        await head.ask(hidden.address, Poke(), Done)


async def test_next_candidate_is_asked_when_a_registry_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patiences: list[float] = []
    tell = Names._tell_registry

    async def recorded(self: Names, registry: Address, deadline_s: float) -> None:
        patiences.append(deadline_s)
        await tell(self, registry, deadline_s)

    monkeypatch.setattr(Names, "_tell_registry", recorded)
    async with TestSystem(tmp_path) as head:
        system = ActorSystem(
            ProcessIdentity("joins", "test", Incarnations(lambda: 0)),
            SystemPorts(
                wire=head.network.wire("joins"),
                journals=SqliteJournal(tmp_path / "joins.sqlite"),
                network=Network("127.0.0.1", None),
            ),
            registry=[Peer("loop://nobody"), head.system.wire.local],
            limits=replace(TEST_LIMITS, lease_s=600.0),
        )
        system.start()
        system.spawn("named", Named)
        await head.ask("named", Poke(), Done, deadline_s=60.0)
        await system.close()
    assert CANDIDATE_S in patiences, "a third of a lease is too long for one of several"


async def test_simultaneous_claims_share_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[int] = []
    append = Journal.append

    async def counted(journal: Journal, *events: Message) -> int:
        commits.append(len(events))
        return await append(journal, *events)

    monkeypatch.setattr(Journal, "append", counted)
    async with TestSystem(tmp_path) as test:
        await test.ask(REGISTRY, Lookup(name="nobody"), Found)
        claims = [
            ClaimNames(endpoint=f"tcp://h:{number}", life=1, names={f"name-{number}": 7}, first=True)
            for number in range(300)
        ]
        granted = await asyncio.gather(*[test.ask(REGISTRY, claim, LeaseGranted) for claim in claims])
        assert not any(one.superseded or one.claim_again for one in granted)
        assert sum(commits) >= 300, "each fence is journaled before its claim is granted"
        assert len(commits) < 30
        found = await test.ask(REGISTRY, Lookup(name="name-299"), Found)
        assert found.address is not None


class Deaf(Actor):
    """Does not reply."""

    @handles(Poke)
    async def poke(self, message: Poke) -> Deferred:
        return Deferred()


async def test_ask_by_name_keeps_its_own_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    until_s: list[float] = []
    real = Names.still_held

    async def still_held(self: Names, address: Address, deadline_s: float) -> bool:
        until_s.append(asyncio.get_running_loop().time() + deadline_s)
        return await real(self, address, deadline_s)

    monkeypatch.setattr(Names, "still_held", still_held)
    async with TestSystem(tmp_path) as head, TestSystem(tmp_path, node="other", join=head) as other:
        other.spawn("deaf", Deaf)
        deadline_s = 5.5 * TEST_LIMITS.resend_s  # a third lookup would need four of these, and two are left
        by_s = asyncio.get_running_loop().time() + deadline_s
        with pytest.raises(AskTimeout):
            await head.ask("deaf", Poke(), Done, deadline_s)
        assert len(until_s) >= 2
        assert max(until_s) <= by_s + 0.05


async def test_repeated_lookup_gets_the_current_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TestSystem(tmp_path) as head, TestSystem(tmp_path, node="other", join=head) as other:
        head.spawn("named", Named)
        await until(lambda: "named" in head.system.names._claimed)
        lost: list[bytes] = []
        send = head.system.links.send

        def losing(to: Peer | Route, packed: bytes, **how: bool) -> Sent:
            if not lost and decode(packed).kind == "Found":
                lost.append(packed)
                return Sent.OK
            return send(to, packed, **how)

        monkeypatch.setattr(head.system.links, "send", losing)
        registry = Address(name=REGISTRY, endpoint=head.system.endpoint)
        asked = asyncio.create_task(other.ask(registry, Lookup(name="named"), Found))
        await until(lambda: lost)
        head.kill("named")
        newer = head.spawn("named", Named)
        assert (await asked).address == newer
