"""Garbage on every port of a live process.

The process lives, answers, counts the garbage, releases its memory, and accepts no message of it.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from besieged_process import WITNESS, AreYouWell, IAmWell

from gleaner.chaos import socket_attacks
from gleaner.chaos.target_monitor import SPARE_DESCRIPTORS, Verdict, besiege
from gleaner.supervisor import ActorSystem, Address, Incarnations, ProcessIdentity, SqliteJournal, SystemPorts
from gleaner.supervisor.network import Network
from gleaner.supervisor.system_messages import SYSTEM, Inspect, SystemState
from gleaner.transport.keys import NodeKeys
from gleaner.transport.mesh import ZmqWire
from gleaner.transport.zap import owned_routing_id

pytestmark = [pytest.mark.realprocess, pytest.mark.timeout(300)]

GROWTH_BYTES = 100 << 20
"""A few messages at the limit of 16 MiB, and what the allocator keeps of them."""
LEAK_BYTES = 40 << 20
"""The growth allowed in a second siege, after the first has filled every cache and pool: two messages at the
limit."""
ANSWER_S = 60.0


class Besieged:
    """A live process and its client."""

    def __init__(self, directory: Path, keys_dir: Path | None) -> None:
        self.keys_dir = keys_dir
        self.keys = NodeKeys.load(keys_dir) if keys_dir else None
        self._log = (directory / "log").open("w+")
        command = [sys.executable, str(Path(__file__).parent / "besieged_process.py")]
        self._process = subprocess.Popen(
            [*command, *([str(keys_dir)] if keys_dir else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout is not None
        self.endpoints: dict[str, str] = json.loads(self._process.stdout.readline() or "{}")
        assert self.endpoints, self.log()
        self.process = psutil.Process(self._process.pid)
        self.asked = 0

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    @property
    def ports(self) -> list[int]:
        return [int(endpoint.rpartition(":")[2]) for endpoint in self.endpoints.values()]

    def address(self, name: str) -> Address:
        key = self.keys.public if self.keys else ""
        return Address(name=name, endpoint=self.endpoints["control"], public_key=key)

    @asynccontextmanager
    async def friend(self) -> AsyncIterator[ActorSystem]:
        incarnations = Incarnations(lambda: time.time_ns() // 1_000_000)
        system = ActorSystem(
            ProcessIdentity("friend", "friend", incarnations),
            SystemPorts(
                wire=ZmqWire("friend", incarnations.mint(), "tcp://127.0.0.1:0", self.keys),
                journals=SqliteJournal(Path(":memory:")),
                network=Network("127.0.0.1", self.keys),
            ),
        )
        system.start()
        try:
            yield system
        finally:
            await system.close()

    async def well(self, system: ActorSystem) -> IAmWell:
        self.asked += 1
        ask = AreYouWell(number=self.asked)
        answer = await system.ask(self.address(WITNESS), ask, deadline_s=ANSWER_S, expect=IAmWell)
        assert answer.number == self.asked
        return answer

    async def state(self, system: ActorSystem) -> SystemState:
        return await system.ask(self.address(SYSTEM), Inspect(), deadline_s=ANSWER_S, expect=SystemState)


@pytest.fixture(params=["plain", "curve"])
def besieged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Besieged]:
    keys_dir = None
    if request.param == "curve":
        keys_dir = tmp_path / "keys"
        NodeKeys.generate().save(keys_dir)
    made = Besieged(tmp_path, keys_dir)
    yield made
    made.close()


def pelt(target: Besieged, seed: int) -> None:
    """Every attack on every port, while slow connections are open."""
    with socket_attacks.slow(target.ports, each=20) as speak:
        for port in target.ports:
            for one in socket_attacks.ATTACKS:
                socket_attacks.throw(port, seed, [one])
                speak()


def siege(target: Besieged, attack: Callable[[], None]) -> tuple[Verdict, IAmWell, SystemState]:
    async def run() -> tuple[Verdict, IAmWell, SystemState]:
        async with target.friend() as system:

            async def ask() -> None:
                await target.well(system)

            await ask()
            verdict = await besiege(target.process, ask, attack)
            return verdict, await target.well(system), await target.state(system)

    return asyncio.run(run())


def held_out(verdict: Verdict) -> bool:
    assert verdict.alive
    assert verdict.failures == []
    assert verdict.grown_descriptors <= SPARE_DESCRIPTORS
    return True


def believed_nothing(target: Besieged, well: IAmWell, state: SystemState) -> bool:
    (witness,) = [actor for actor in state.actors if actor.name == WITNESS]
    assert witness.handled == target.asked  # our messages, and no other
    assert (well.frames, well.served_bytes) == (0, 0)
    assert "Traceback" not in target.log(), target.log()
    return True


def test_attacked_process_lives_answers_and_believes_nothing(besieged: Besieged) -> None:
    first, well, state = siege(besieged, lambda: pelt(besieged, seed=1))
    assert held_out(first)
    assert first.asks > 3, "it was asked all the while"
    assert first.grown_bytes < GROWTH_BYTES
    if besieged.keys is None:
        second, well, state = siege(besieged, lambda: pelt(besieged, seed=2))
        assert held_out(second)
        assert second.grown_bytes < LEAK_BYTES
    assert believed_nothing(besieged, well, state)
    # all garbage is counted, by reason
    assert Counter(well.bulk_refused) >= Counter({"not-ours": 2, "truncated": 2, "unauthorized": 2})
    if besieged.keys is None:
        frames = {"no-identity", "wrong-parts", "unknown-version", "bad-field", "truncated"}
        assert state.refused.keys() >= frames | {
            "handshake",
            "not-ours",
            "oversize",
            "UnknownKind",
            "BadBody",
        }
        assert well.stream_refused.keys() >= frames | {"fenced"}
    else:
        assert state.refused.keys() == {"handshake"}  # no attack passed the handshake


def test_lying_member_is_refused_and_speaks_only_for_itself(tmp_path: Path) -> None:
    member = NodeKeys.generate()
    keys_dir = tmp_path / "keys"
    own = NodeKeys.generate()
    NodeKeys(own.public, own.secret, frozenset({member.public})).save(keys_dir)
    target = Besieged(tmp_path, keys_dir)
    try:
        attack = socket_attacks.lying_member(member, own.public, victim=own.public)
        verdict, well, state = siege(
            target, lambda: [socket_attacks.throw(port, 3, [attack]) for port in target.ports[:2]]
        )
        assert held_out(verdict)
        assert believed_nothing(target, well, state)
        assert state.refused.keys() >= {"impostor", "unknown-version", "bad-field", "not-ours", "UnknownKind"}
        assert well.stream_refused.keys() >= {"impostor", "fenced", "bad-field"}
    finally:
        target.close()


def test_routing_id_of_another_client_is_not_guessed() -> None:
    ids = {owned_routing_id("friend#1#2a.1", None) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(rb"gl1#friend#1#2a\.1\.[0-9a-f]{16}#", routing_id) for routing_id in ids)
