"""Relayed weights against a star from the publisher: real processes over loopback.

Usage: `python -m bench.weights.relay [--json FILE] [--write-docs]`. Each process has a card of its own
(`cards`). In each round one publisher gives a new version to 1, 2 and 4 receivers, once with relays and once
as a star, and to 4 of which one is killed on the way; the last receiver's time counts. Medians of the rounds.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.page_sections import put
from bench.runtime.harness import ROOT
from bench.weights import cards, relay_picture
from bench.weights.relay_process import Orders
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.weights import Fetch, Fetched, Publish, Published
from gleaner.actors.weights.image.store import ImageStore
from gleaner.nodeagent.host import ProcessLocation
from gleaner.nodeagent.system import open_system
from gleaner.supervisor import ActorSystem, Registry
from gleaner.supervisor.names.client import REGISTRY

RECEIVERS = (1, 2, 4)
MODES = ("relay", "star")
IMAGE_BYTES, CARD_BYTES_S, CHUNK_BYTES = 64 << 20, 40e6, 1 << 20
ROUNDS = 3
KILLED_AFTER = 0.4  # of the time that one receiver alone takes
START_S, PULL_S = 60.0, 300.0
HEAD, PUBLISHER, FIRST = "127.0.0.1", "127.0.0.2", 3


@dataclass(frozen=True, slots=True)
class Wave:
    """Distribution of one version to `receivers`; `killed`: one of them was killed on the way. `seconds`:
    until the last one had it. `origin_bytes`: bytes that left the publisher's card."""

    mode: str
    receivers: int
    killed: bool
    seconds: float
    origin_bytes: int


class House:
    """The publisher, one agent for each mode on one card, and the receivers, processes each."""

    def __init__(self, system: ActorSystem, directory: Path, memory: Path) -> None:
        self._system, self._directory, self._memory = system, directory, memory
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._version = 0
        self._data = bytearray(os.urandom(IMAGE_BYTES))

    def orders(self, name: str, address: str, mode: str = "relay") -> Orders:
        """Orders of one host."""
        weights = {"chunk_bytes": CHUNK_BYTES, "link_bytes_s": CARD_BYTES_S, "delta": False}
        weights["relay"] = mode == "relay"
        head = self._system.wire.local.endpoint
        return Orders(name, address, str(self._directory), str(self._memory), head, weights)

    def start(self, number: int) -> None:
        """A receiver, started again after its end."""
        name = f"r{number}"
        orders = self.orders(name, f"127.0.0.{FIRST + number}")
        command = [sys.executable, "-m", "bench.weights.relay_process", msgspec.json.encode(orders).decode()]
        self._running[name] = subprocess.Popen(command)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._running[name].kill()
        self._running[name].wait()

    async def publish(self, mode: str) -> Fetch:
        """A new version, and the notice for its receivers."""
        self._version += 1
        self._data[:8] = self._version.to_bytes(8, "little")
        for at in range(0, IMAGE_BYTES, CHUNK_BYTES):
            self._data[at] ^= self._version & 0xFF or 1
        with ImageStore(self._memory / mode, keep=2).create(self._version, IMAGE_BYTES) as draft:
            draft.view[:] = self._data
            draft.seal()
        tensors = (TensorSpec("w", "uint8", (IMAGE_BYTES,), 0, IMAGE_BYTES),)
        publish = Publish(version=self._version, tensors=tensors, model_config=b"{}")
        done = await self._system.ask(f"{mode}/transfer", publish, deadline_s=START_S, expect=Published)
        return Fetch(version=self._version, root=done.root, sources=(f"{mode}/transfer",))

    async def pull(self, name: str, fetch: Fetch) -> None:
        """Wait until it is there."""
        await self._system.ask(f"{name}/transfer", fetch, deadline_s=PULL_S, expect=Fetched)

    async def wave(self, mode: str, receivers: int, *, kills: bool = False) -> Wave:
        """One version to so many. The killed receiver is the first, which serves the others."""
        fetch = await self.publish(mode)
        before = cards.sent_bytes([PUBLISHER])[0]
        began_s = time.perf_counter()
        pulls = [asyncio.ensure_future(self.pull(f"r{number}", fetch)) for number in range(receivers)]
        if kills:
            await asyncio.sleep(KILLED_AFTER * IMAGE_BYTES / CARD_BYTES_S)
            self.kill("r0")
            pulls.pop(0).cancel()
        await asyncio.gather(*pulls)
        seconds = time.perf_counter() - began_s
        sent = cards.sent_bytes([PUBLISHER])[0] - before
        if kills:
            self.start(0)
            await self._system.resolve("r0/transfer", START_S)
        return Wave(mode, receivers, kills, seconds, sent)

    def close(self) -> None:
        """End every process."""
        for running in self._running.values():
            running.kill()
            running.wait()


@asynccontextmanager
async def house() -> AsyncIterator[House]:
    """The whole bench, started."""
    with (
        tempfile.TemporaryDirectory(prefix="relay-") as directory,
        tempfile.TemporaryDirectory(prefix="gleaner-bench-", dir="/dev/shm") as memory,
    ):
        location = ProcessLocation("head", "head", Path(directory) / "head", listen=f"tcp://{PUBLISHER}:0")
        async with open_system(location) as system:
            system.spawn(REGISTRY, lambda: Registry(lambda: system.limits.lease_s))
            made = House(system, Path(directory), Path(memory))
            try:
                for mode in MODES:
                    orders = made.orders(mode, PUBLISHER, mode)
                    system.spawn(f"{mode}/transfer", orders.agent)
                for number in range(max(RECEIVERS)):
                    made.start(number)
                for number in range(max(RECEIVERS)):
                    await system.resolve(f"r{number}/transfer", START_S)
                yield made
            finally:
                made.close()


async def measure(rounds: int) -> list[Wave]:
    """All waves, the two modes one after the other in each round."""
    cards.limit([PUBLISHER, *(f"127.0.0.{FIRST + number}" for number in range(max(RECEIVERS)))], CARD_BYTES_S)
    waves = []
    async with house() as made:
        for mode in MODES:
            await made.wave(mode, max(RECEIVERS))  # connections and pages, once
        for number in range(rounds):
            modes = MODES if number % 2 == 0 else MODES[::-1]
            waves += [await made.wave(mode, count) for count in RECEIVERS for mode in modes]
            waves += [await made.wave(mode, max(RECEIVERS), kills=True) for mode in modes]
    return waves


def medians(waves: Sequence[Wave]) -> list[Wave]:
    """One for each case, in the order of their first occurrence, relay before star."""
    cases = dict.fromkeys((wave.killed, wave.receivers) for wave in waves)
    found = []
    for killed, receivers in sorted(cases):
        for mode in MODES:
            some = [
                one for one in waves if (one.mode, one.receivers, one.killed) == (mode, receivers, killed)
            ]
            seconds = statistics.median(one.seconds for one in some)
            nbytes = int(statistics.median(one.origin_bytes for one in some))
            found.append(Wave(mode, receivers, killed, seconds, nbytes))
    return found


INTRODUCTION = """\
# Weights to a few receivers, measured

Measured by `python -m bench.weights.relay --write-docs`, begun at {began}. Real processes over
loopback, one `TransferAgent` each, and a new version of {mib} MiB for every wave. Loopback has no cards: all
processes would share one machine's memory and processors. So what leaves each host's address is limited to
{card:g} MB/s (Linux htb, in a network namespace), the publisher's as the others': it can serve one receiver
at full rate. *Star*: `weights.relay = false`. Until the last receiver has all of it. *Left the publisher*: by
the counter of its card, headers with it, in images. *Killed*: the one that serves the others, by SIGKILL,
after {after:.0%} of the time of one alone. Medians of {rounds} rounds, the two ways by turns.
"""
HEADS = (
    "receivers",
    "relay, s",
    "star, s",
    "times one alone",
    "star's",
    "left the publisher, copies",
    "star's",
)


def rows(found: Sequence[Wave]) -> list[tuple[str, ...]]:
    """The cells of the table."""
    alone_s = found[0].seconds
    table: list[tuple[str, ...]] = []
    for relay, star in zip(found[::2], found[1::2], strict=True):
        table.append(
            (
                f"{relay.receivers}, of which one is killed" if relay.killed else str(relay.receivers),
                f"{relay.seconds:.2f}",
                f"{star.seconds:.2f}",
                f"{relay.seconds / alone_s:.2f}",
                f"{star.seconds / alone_s:.2f}",
                f"{relay.origin_bytes / IMAGE_BYTES:.2f}",
                f"{star.origin_bytes / IMAGE_BYTES:.2f}",
            )
        )
    return table


def page(found: Sequence[Wave], rounds: int, began: str) -> str:
    """The section of docs/benchmarks.md."""
    lines = [
        INTRODUCTION.format(
            began=began, mib=IMAGE_BYTES >> 20, card=CARD_BYTES_S / 1e6, after=KILLED_AFTER, rounds=rounds
        ),
        f"| {' | '.join(HEADS)} |",
        "|---" + "|---:" * (len(HEADS) - 1) + "|",
        *(f"| {' | '.join(row)} |" for row in rows(found)),
        "",
        f"![Seconds by receivers, with relays and as a star](images/{relay_picture.NAME})",
    ]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.weights.relay", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every wave here, and the medians")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    parser.add_argument(
        "--write-docs", action="store_true", help="write the section of docs/benchmarks.md and the picture"
    )
    arguments = parser.parse_args()
    cards.inside("bench.weights.relay")
    began = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    waves = asyncio.run(measure(arguments.rounds))
    found = medians(waves)
    table = Table(*HEADS, title="Weights to a few receivers")
    for row in rows(found):
        table.add_row(*row)
    Console(width=120).print(table)
    if arguments.json is not None:
        report = {"waves": [asdict(wave) for wave in waves], "medians": [asdict(wave) for wave in found]}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    if arguments.write_docs:
        put(ROOT / "docs" / "benchmarks.md", "weights to a few", page(found, arguments.rounds, began))
        text = relay_picture.picture(
            [(wave.receivers, wave.mode, wave.killed, wave.seconds) for wave in found]
        )
        (ROOT / "docs" / "images" / relay_picture.NAME).write_text(text)


if __name__ == "__main__":
    main()
