"""GB/s of a pull of 4 GiB over loopback, from shared memory into shared memory.

Usage: `python -m bench.weights.pull [--json FILE] [--write-docs] [--mib N] [--rounds N]`. Both ends of each
way are in processes of their own. Ours: `gleaner.transport.bulk`, every chunk of 4 MiB checked against its
xxh3-128. The limit: threads in blocking `sendall` and `recv_into` of as many connections, nothing checked.
Peers: iperf3, Mooncake's transfer engine over TCP, and NIXL over UCX's TCP. The ways take turns; medians of
the rounds. GB is 1e9 bytes.
"""

import argparse
import json
import mmap
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.runtime.harness import ROOT
from bench.runtime.machine import machine
from bench.weights.pull_ends import CHUNK_BYTES, mapped
from bench.weights.pull_pairs import (
    IPERF,
    LIMIT,
    MOONCAKE,
    NIXL,
    OURS,
    CannotRun,
    Cost,
    Pair,
    Way,
    open_pair,
)

RESULTS = ROOT / "docs" / "weight_pull.json"
CONNECTIONS = (1, 2, 4)
WAYS = (
    *(Way(system, count) for count in CONNECTIONS for system in (OURS, LIMIT, IPERF)),
    Way(MOONCAKE, 0),
    Way(NIXL, 0),
)
SHARE = 0.8
"""Of the limit, with hashing on: the goal."""
MIB, ROUNDS = 4096, 5
LOOKED_AT = 4096  # bytes at the beginning of each chunk, wiped before a transfer and compared after it


@dataclass(slots=True)
class Measured:
    """One way: GB/s and processor seconds a GB of each round, or the reason of its absence."""

    system: str
    connections: int
    rates: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    why_not: str = ""


def measure(mib: int, rounds: int, ways: Sequence[Way] = WAYS) -> list[Measured]:
    """Every way in turns. Raises AssertionError where bytes did not arrive."""
    found = {way: Measured(way.system, way.connections) for way in ways}
    with images(mib << 20) as (source, target):
        pairs: dict[Way, Pair] = {}
        try:
            for way in ways:
                try:
                    pairs[way] = open_pair(way, source, target)
                except CannotRun as problem:
                    found[way].why_not = str(problem)
            for number in range(rounds + 1):
                for way, pair in pairs.items():
                    cost = _checked(way, pair, source, target)
                    if number:  # the first round maps pages
                        found[way].rates.append(cost.nbytes / cost.seconds / 1e9)
                        found[way].cpu_s.append(cost.cpu_s / cost.nbytes * 1e9)
        finally:
            for pair in pairs.values():
                pair.close()
    return list(found.values())


@contextmanager
def images(nbytes: int) -> Iterator[tuple[Path, Path]]:
    """A source with content and a target with its pages, both in shared memory."""
    with tempfile.TemporaryDirectory(prefix="gleaner-bench-", dir="/dev/shm") as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        block = os.urandom(CHUNK_BYTES - 8)
        with source.open("wb") as file:
            for number in range(nbytes // CHUNK_BYTES):
                file.write(number.to_bytes(8, "little") + block)
        with target.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)
        yield source, target


def of(found: Sequence[Measured], system: str, connections: int) -> float | None:
    """The median rate of a way."""
    rates = [one.rates for one in found if (one.system, one.connections) == (system, connections)]
    return median(rates[0]) if rates and rates[0] else None


def shares(found: Sequence[Measured]) -> dict[int, float]:
    """Ours over the limit, by connections: the median over rounds, each compared with its own."""
    by_way: dict[tuple[str, int], list[float]] = defaultdict(list)
    for one in found:
        by_way[one.system, one.connections] = one.rates
    return {
        count: median(a / b for a, b in zip(by_way[OURS, count], by_way[LIMIT, count], strict=True))
        for count in CONNECTIONS
        if by_way[OURS, count] and by_way[LIMIT, count]
    }


def _checked(way: Way, pair: Pair, source: Path, target: Path) -> Cost:
    if way.system == IPERF:  # it keeps nothing
        return pair.transfer()
    right, came = mapped(source, mmap.ACCESS_READ), mapped(target, mmap.ACCESS_WRITE)
    for at in range(0, len(came), CHUNK_BYTES):
        came[at : at + LOOKED_AT] = bytes(LOOKED_AT)
    cost = pair.transfer()
    for at in range(0, len(came), CHUNK_BYTES):
        if came[at : at + LOOKED_AT] != right[at : at + LOOKED_AT]:
            raise AssertionError(f"{way}: the bytes at {at} did not come")
    return cost


def show(found: Sequence[Measured], console: Console) -> None:
    """The table."""
    table = Table("way", "connections", title="A pull over loopback")
    for column in ("GB/s", "least", "most", "CPU s a GB"):
        table.add_column(column, justify="right")
    for one in found:
        cells = [one.why_not or "-", "", "", ""]
        if one.rates:
            cells = [f"{value:.2f}" for value in (median(one.rates), min(one.rates), max(one.rates))]
            cells.append(f"{median(one.cpu_s):.2f}")
        table.add_row(one.system, str(one.connections or "its own"), *cells)
    console.print(table)
    for count, share in shares(found).items():
        console.print(f"{count} connections: {share:.2f} of the limit, goal {SHARE}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.weights.pull", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--mib", type=int, default=MIB, help="bytes of an image, in MiB")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help=f"write the section of docs/benchmarks.md and its plot from --json, or {RESULTS.name}; "
        "measures nothing",
    )
    arguments = parser.parse_args()
    if arguments.write_docs:
        from bench.weights import pull_page  # matplotlib, which must not be in memory while measuring

        pull_page.write(json.loads((arguments.json or RESULTS).read_text()), ROOT / "docs")
        return
    before, began = machine(), datetime.now(UTC)
    found = measure(arguments.mib, arguments.rounds)
    show(found, Console(width=120))
    if arguments.json is not None:
        written = {
            "began": began.isoformat(timespec="seconds"),
            "took_s": round((datetime.now(UTC) - began).total_seconds()),
            "machine": before,
            "mib": arguments.mib,
            "rounds": arguments.rounds,
            "found": [asdict(one) for one in found],
        }
        arguments.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
