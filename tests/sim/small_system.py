"""A small system of production components in the simulator.

It has a registry, a ledger with a journal, and clients on other hosts that count by asking the ledger, under
kills, freezes and a bad network. `python small_system.py SEED` prints the outcome with the hash of its
history.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from gleaner.sim.disk import SimDisk
from gleaner.sim.loop import SimLoop
from gleaner.sim.network import Profile, SimNet
from gleaner.sim.process_loop import ProcessLoop
from gleaner.supervisor import (
    Actor,
    ActorSystem,
    AskFailed,
    Incarnations,
    Message,
    ProcessIdentity,
    Registry,
    Supervisor,
    SystemPorts,
    child,
    handles,
    one_for_one,
)
from gleaner.supervisor.network import Network
from gleaner.transport.wire import Peer

SECONDS = 30.0
HOSTS = ("head", "one", "two")
LEDGER = "ledger"
FIRST_PORT = 7700


class CountOne(Message, frozen=True):
    client: str
    number: int


class CountedTo(Message, frozen=True):
    total: int


class CountNext(Message, frozen=True):
    pass


class Ledger(Actor):
    """Counts each number of each client once, durably."""

    async def on_start(self) -> None:
        self.counted: dict[str, None] = {}
        async for event in self.ctx.journal.replay():
            if isinstance(event, CountOne):
                self.counted[f"{event.client}/{event.number}"] = None

    @handles(CountOne)
    async def count(self, message: CountOne) -> CountedTo:
        key = f"{message.client}/{message.number}"
        if key not in self.counted:
            await self.ctx.journal.append(message)
            self.counted[key] = None
        return CountedTo(total=len(self.counted))


class Client(Actor):
    """Counts 1, 2, 3, ... and journals its position."""

    async def on_start(self) -> None:
        self.number = 0
        async for event in self.ctx.journal.replay():
            if isinstance(event, CountOne):
                self.number = event.number
        self.ctx.every(0.05, CountNext())

    @handles(CountNext)
    async def next(self, _message: CountNext) -> None:
        one = CountOne(client=self.ctx.name, number=self.number + 1)
        key = f"{one.client}/{one.number}"
        try:
            await self.ctx.ask(
                LEDGER, one, deadline_s=self.ctx.rng.uniform(0.5, 2.0), expect=CountedTo, key=key
            )
        except AskFailed:
            return
        await self.ctx.journal.append(one)
        self.number = one.number


@dataclass
class History:
    """The outcome of a run."""

    hash: str
    turns: int
    counted: int
    remembered: int
    faults: int
    findings: int


class SmallSystem:
    """One run, fully determined by `seed`."""

    def __init__(self, seed: int) -> None:
        self.loop = SimLoop()
        self.rng = random.Random(f"{seed}/faults")
        self.net = SimNet(
            self.loop, random.Random(f"{seed}/net"), self.loop.trace, profile=Profile(loss=0.02)
        )
        self.disks = {}
        self.addresses = {}
        for host in HOSTS:
            self.addresses[host] = self.net.add_host(host)
            self.disks[host] = SimDisk(self.loop, random.Random(f"{seed}/disk/{host}"), host)
        self.seed = seed
        self.faults = 0
        self.lives: dict[str, ProcessLoop] = {}

    def run(self) -> History:
        for host in HOSTS:
            self.start(host)
        self.loop.call_later(1.0, self.fault)
        self.loop.run(until_s=SECONDS)
        facts = [self.count(host) for host in HOSTS]
        self.loop.trace.note("end", self.loop.turns, *facts)
        self.loop.close()
        return History(
            self.loop.trace.hash,
            self.loop.turns,
            facts[0],
            sum(facts[1:]),
            self.faults,
            len(self.loop.findings),
        )

    def start(self, host: str) -> None:
        process = self.lives[host] = self.loop.spawn(f"{host}/main", host)
        process.create_task(self.main(process, host))

    async def main(self, process: ProcessLoop, host: str) -> None:
        store = self.disks[host].journal("main.sqlite", process, commit_s=0.005)
        incarnations = Incarnations(lambda: self.loop.wall_ms(host))
        incarnations.at_least(await store.newest_incarnation())
        head = Peer(f"tcp://{self.addresses['head']}:{FIRST_PORT}")
        bind = head.endpoint if host == "head" else None
        system = ActorSystem(
            ProcessIdentity(host, "main", incarnations),
            SystemPorts(
                wire=self.net.wire(process, host, f"{host}/main", bind),
                journals=store,
                network=Network(self.addresses[host], None, carrier=self.net.carrier(process, host)),
            ),
            registry=None if host == "head" else head,
            seed=self.seed,
        )
        system.start()
        parts: list[tuple[str, Callable[[], Actor]]] = [(f"{host}/client", Client)]
        if host == "head":
            parts = [("registry", lambda: Registry(lambda: system.limits.lease_s)), (LEDGER, Ledger)]
        children = [child(name, start) for name, start in parts]
        failed: list[Exception] = []
        tree = Supervisor(system, one_for_one(*children, name=f"{host}/tree"), on_failure=failed.append)
        await tree.start()

    def fault(self) -> None:
        host = self.rng.choice(HOSTS)
        process = self.lives[host]
        self.faults += process.alive
        if process.frozen:
            process.thaw()
        elif not process.alive:
            pass  # its restart is already under way
        elif self.rng.random() < 0.5:
            process.freeze()
            self.loop.call_later(self.rng.uniform(0.1, 3.0), process.thaw)
        else:
            process.kill()
            self.loop.call_later(self.rng.uniform(0.05, 0.5), self.start, host)
        self.loop.call_later(self.rng.expovariate(1 / 2.0), self.fault)

    def count(self, host: str) -> int:
        """The events in the journals of a host."""
        disk, total = self.disks[host], 0
        for place in disk.places():
            view = disk.view(place)
            for name in view.names():
                rows = view.rows(name)
                total += sum(row.kind == CountOne.__name__ for row in rows.events) if rows is not None else 0
        return total


def histories(seeds: list[int]) -> list[History]:
    return [SmallSystem(seed).run() for seed in seeds]


if __name__ == "__main__":
    for history in histories([int(word) for word in sys.argv[1:]]):
        print(history)
