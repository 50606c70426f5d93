"""The client library over real sockets: lookups, asks, messages, timeouts."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gleaner.rlctl import Cluster, connect
from gleaner.rlctl.errors import NOTHING, CommandError
from gleaner.supervisor import (
    Actor,
    ActorSystem,
    AskTimeout,
    Done,
    Incarnations,
    Message,
    ProcessIdentity,
    Refused,
    Registry,
    SqliteJournal,
    SystemPorts,
    handles,
)
from gleaner.supervisor.network import Network
from gleaner.transport.keys import NodeKeys
from gleaner.transport.mesh import ZmqWire


class ClientCount(Message, frozen=True):
    text: str


class Total(Message, frozen=True):
    words: int


class Counter(Actor):
    def __init__(self) -> None:
        self.words = 0

    @handles(ClientCount)
    async def count(self, message: ClientCount) -> Total:
        if not message.text:
            raise Refused("there is nothing to count")
        self.words += len(message.text.split())
        return Total(words=self.words)


class Head:
    """A process with a registry and a counter, with keys or without."""

    def __init__(self, folder: Path, keys: NodeKeys | None) -> None:
        self.system = ActorSystem(
            ProcessIdentity("head", "agent", Incarnations(lambda: 0)),
            SystemPorts(
                wire=ZmqWire("head", 1, keys=keys),
                journals=SqliteJournal(folder / "head.sqlite"),
                network=Network("127.0.0.1", keys),
            ),
        )

    async def __aenter__(self) -> "Head":
        self.system.start()
        self.system.spawn("registry", lambda: Registry(lambda: 3.0))
        self.system.spawn("counter", Counter)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.system.close()

    @property
    def endpoint(self) -> str:
        return self.system.wire.local.endpoint


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Head(tmp_path, None) as head, connect(head.endpoint) as client:
        yield client


async def test_actor_is_asked_by_name_or_address(cluster: Cluster) -> None:
    assert await cluster.ask("counter", ClientCount(text="to be or not"), expect=Total) == Total(words=4)
    address = await cluster.find("counter")
    assert address.incarnation > 0
    await cluster.tell(address, ClientCount(text="to be"))
    assert await cluster.ask(address, ClientCount(text="x"), expect=Total) == Total(words=7)


async def test_ask_with_a_key_takes_effect_once(cluster: Cluster) -> None:
    for _ in range(3):
        assert await cluster.ask("counter", ClientCount(text="a b"), expect=Total, key="k") == Total(words=2)


async def test_refusals_and_unknown_names_are_errors_never_silence(cluster: Cluster) -> None:
    with pytest.raises(Refused, match="nothing to count"):
        await cluster.ask("counter", ClientCount(text=""), expect=Total)
    with pytest.raises(AskTimeout, match="nobody"):
        await cluster.ask("nobody", ClientCount(text="a"), expect=Done, deadline_s=0.3)


async def test_every_process_reports_its_actors(cluster: Cluster) -> None:
    async with asyncio.timeout(60):  # a name is claimed concurrently with the actor's start
        while "counter" not in {address.name for address in await cluster.names()}:
            await asyncio.sleep(0.02)
    seen = await cluster.processes()
    assert seen.silent == []
    assert [state.node for state in seen.states] == ["head"]
    assert {actor.name for actor in seen.states[0].actors} == {"registry", "counter"}


async def test_missing_head_is_reported(tmp_path: Path) -> None:
    async with connect("tcp://127.0.0.1:1") as cluster:
        with pytest.raises(CommandError, match="no head answers at tcp://127.0.0.1:1") as error:
            await cluster.probe(deadline_s=0.5)
    assert error.value.code == NOTHING


async def test_head_with_keys_answers_only_trusted_clients(tmp_path: Path) -> None:
    client, stranger = NodeKeys.generate(), NodeKeys.generate()
    own = NodeKeys.generate()
    keys = NodeKeys(own.public, own.secret, frozenset({client.public}))
    async with Head(tmp_path, keys) as head:
        async with connect(head.endpoint, client, head_key=own.public) as trusted:
            assert await trusted.ask("counter", ClientCount(text="a"), expect=Total) == Total(words=1)
        for other in (stranger, None):
            async with connect(head.endpoint, other, head_key=own.public if other else "") as refused:
                with pytest.raises(CommandError, match="and the keys"):
                    await refused.probe(deadline_s=0.5)


async def test_clients_started_together_get_their_own_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.rlctl.client.wall_ms", lambda: 1_700_000_000_000)

    async def count(address: str, text: str) -> int:
        async with connect(address) as client:
            return (await client.ask("counter", ClientCount(text=text), expect=Total)).words

    async with Head(tmp_path, None) as head:
        totals = await asyncio.gather(*(count(head.endpoint, "one more") for _ in range(4)))
    assert sorted(totals) == [2, 4, 6, 8]
