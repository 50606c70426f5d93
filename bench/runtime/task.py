"""Task: shared parts of the programs that measure one system.

These are orders, payload, samples and report. Imported by programs that run in the peers' environments: the
standard library alone.
"""

import json
import math
import os
import sys
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

PAYLOAD_BYTES = 100
OUTSTANDING = 64
MARK = "GLEANER_BENCH_RUN"
"""Environment variable of every process of one program, by which it is found, measured and ended."""

_PADDING = bytes(PAYLOAD_BYTES - 8)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Durations and counts; `quick` is for trials, not for reporting."""

    seconds: float = 2.0  # of one rate or latency measurement
    warm_up_s: float = 0.5
    storm_s: float = 10.0
    storm_actors: int = 1000
    storm_processes: int = 8
    spawned: int = 10_000
    idle_actors: int = 1000
    idle_s: float = 5.0
    restarts: int = 3  # in one round, and processes killed; the median counts
    never_s: float = 45.0  # no sign of a frozen process by then: it counts as never noticed

    @classmethod
    def quick(cls) -> "Sizes":
        """Seconds instead of minutes."""
        return cls(0.4, 0.1, 2.0, 200, 8, 1000, 200, 1.0, 2, 12.0)


@dataclass(slots=True)
class Task:
    """One program run: the requested rows, and its results."""

    rows: list[str]
    sizes: Sizes
    scratch: Path
    found: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    version: str = ""

    def wants(self, row: str) -> bool:
        """Whether this row is requested."""
        return row in self.rows

    def report(self, row: str, **figures: float) -> None:
        """The figures of one row; NaN means that the event never happened."""
        self.found[row] = figures

    def report_storm(self) -> None:
        """The sum of the saved counts of the storm's processes."""
        self.report("storm", **Storm.load_all(self.scratch).figures(self.sizes.storm_s))

    def cannot(self, row: str, why: str) -> None:
        """This system lacks the feature; a sentence for the reader."""
        self.notes[row] = why

    def to_json(self) -> str:
        """The results for the harness."""
        return json.dumps({"found": self.found, "notes": self.notes, "version": self.version})


def main(version: Callable[[], str], groups: Mapping[str, Callable[[Task], None]]) -> None:
    """The command line of a program: ORDERS_JSON with group, rows, sizes, scratch, out."""
    orders = json.loads(sys.argv[1])
    task = Task(orders["rows"], Sizes(**orders["sizes"]), Path(orders["scratch"]))
    task.version = version()
    groups[orders["group"]](task)
    Path(orders["out"]).write_text(task.to_json())
    os._exit(0)  # a peer's orderly shutdown is not awaited: the harness ends remaining processes


def orders(group: str, rows: list[str], sizes: Sizes, scratch: Path, out: Path) -> str:
    """The argument of `main`."""
    return json.dumps(
        {"group": group, "rows": rows, "sizes": asdict(sizes), "scratch": str(scratch), "out": str(out)}
    )


def payload(number: int) -> bytes:
    """100 bytes that begin with their number."""
    return number.to_bytes(8, "little") + _PADDING


def number_of(content: bytes) -> int:
    """The number that a payload begins with."""
    return int.from_bytes(content[:8], "little")


def ready_s(sizes: Sizes) -> float:
    """Within this time all actors of the storm have received the start time."""
    return 1.0 + sizes.storm_actors / 200


def percentile(samples: "array[float] | list[float]", share: float) -> float:
    """The nearest-rank percentile, `share` in (0, 1]; NaN of nothing."""
    if not samples:
        return float("nan")
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


@dataclass(frozen=True, slots=True)
class AskResult:
    """Answered asks: the seconds of each, the seconds of all, and the CPU seconds of all processes. `each` is
    the number of asks in one latency."""

    latencies: "array[float]"
    seconds: float
    cpu_s: float
    each: int = 1

    def latency(self) -> dict[str, float]:
        """The figures of a row of latencies."""
        return {
            "p50_us": percentile(self.latencies, 0.5) * 1e6,
            "p99_us": percentile(self.latencies, 0.99) * 1e6,
        }

    def rate(self) -> dict[str, float]:
        """The figures of a row of rates."""
        count = len(self.latencies) * self.each
        return {"per_s": count / self.seconds, "cpu_us": self.cpu_s / count * 1e6}


@dataclass(frozen=True, slots=True)
class TellResult:
    """One-way messages: counts of sent, received and out-of-order ones; seconds and CPU seconds until all had
    arrived."""

    sent: int
    came: int
    disordered: int
    seconds: float
    cpu_s: float

    def figures(self) -> dict[str, float]:
        """The row's figures."""
        return {
            "per_s": self.came / self.seconds,
            "cpu_us": self.cpu_s / self.came * 1e6 if self.came else float("nan"),
            "lost": self.sent - self.came,
            "disordered": self.disordered,
        }


class Sink:
    """Counts numbered payloads and checks that they arrive in order, each once."""

    def __init__(self) -> None:
        self.count = 0
        self.disordered = 0
        self._next = 0

    def take(self, content: bytes) -> None:
        """One payload."""
        self.count += 1
        if int.from_bytes(content[:8], "little") != self._next or len(content) != PAYLOAD_BYTES:
            self.disordered += 1
        self._next = int.from_bytes(content[:8], "little") + 1


@dataclass(slots=True)
class Storm:
    """Counts of one process while its actors ask others at random."""

    asked: int = 0
    answered: int = 0  # with the right bytes
    in_time: int = 0  # of those, before the storm was over: the rate counts these
    failed: int = 0
    latencies: "array[float]" = field(default_factory=lambda: array("d"))

    def answer(self, right: bool, took_s: float, in_time: bool) -> None:
        """Record one answer."""
        self.answered += right
        self.failed += not right
        self.in_time += right and in_time
        self.latencies.append(took_s)

    @property
    def outstanding(self) -> int:
        """Asks without an answer or a failure."""
        return self.asked - self.answered - self.failed

    def save(self, scratch: Path, process: str) -> None:
        """Save the counts for the process that adds them up."""
        with (scratch / f"storm-{process}").open("wb") as out:
            array("d", [self.asked, self.answered, self.in_time, self.failed]).tofile(out)
            self.latencies.tofile(out)

    @classmethod
    def load_all(cls, scratch: Path) -> "Storm":
        """The sum of all saved counts there."""
        total = cls()
        for file in sorted(scratch.glob("storm-*")):
            content = array("d")
            content.frombytes(file.read_bytes())
            total.asked += int(content[0])
            total.answered += int(content[1])
            total.in_time += int(content[2])
            total.failed += int(content[3])
            total.latencies.extend(content[4:])
        return total

    def figures(self, seconds: float) -> dict[str, float]:
        """The row's figures."""
        return {
            "per_s": self.in_time / seconds,
            "p50_ms": percentile(self.latencies, 0.5) * 1e3,
            "p99_ms": percentile(self.latencies, 0.99) * 1e3,
            "lost": self.asked - self.answered,
        }


def marked_pids() -> list[int]:
    """Every process of this program's run, itself included."""
    mark = os.environ.get(MARK)
    return pids_with(mark) if mark else [os.getpid()]


def pids_with(mark: str) -> list[int]:
    """Every process with `mark` in its environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue  # gone, or another user's
    return found


def cpu_s(pids: list[int]) -> float:
    """CPU seconds that these processes' threads ran so far, to the nanosecond."""
    total = 0
    for pid in pids:
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(file.read_text().split()[0])
            except OSError:
                continue  # the thread ended
    return total / 1e9


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Effort:
    """The CPU time of all processes of this run, from here on."""

    def __init__(self) -> None:
        self._pids = marked_pids()
        self._before = cpu_s(self._pids)

    def spent_s(self) -> float:
        """CPU seconds since the start of the measurement."""
        return cpu_s(self._pids) - self._before


def idle_percent(seconds: float) -> float:
    """Percent of one core that all processes of this run use while they are idle."""
    effort, began = Effort(), time.perf_counter()
    time.sleep(seconds)
    return effort.spent_s() / (time.perf_counter() - began) * 100
