"""Rows: measurements, goals, and whether a goal was met. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

OURS = "gleaner"
LIMIT = "pyzmq"
SYSTEMS = (LIMIT, OURS, "ray", "monarch", "xoscar", "dask")
"""In the order of the turns and of the display."""

PEERS = ("ray", "monarch", "xoscar", "dask")

Samples = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
"""row -> system -> metric -> one value a round."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a row. `lower`: lower values are better."""

    name: str
    unit: str
    lower: bool

    @property
    def label(self) -> str:
        """The unit, with the quantile where it is one."""
        quantile, _, _ = self.name.partition("_")
        return f"{quantile}, {self.unit}" if quantile in ("p50", "p99") else self.unit


@dataclass(frozen=True, slots=True)
class Goal:
    """Our median of `metric` is on the right side of `bound`, times the median of `of` where that is set
    ("every peer": of each of them). Strict where `strict`."""

    metric: str
    bound: float
    of: str = ""
    strict: bool = False
    bound_metric: str = ""  # the bound is this figure of our own, as it was configured in the run


@dataclass(frozen=True, slots=True)
class RowSpec:
    """One row of the table; the first metric is the one that is plotted. Rows of one group share a program
    run."""

    name: str
    group: str
    title: str
    metrics: tuple[Metric, ...]
    goals: tuple[Goal, ...]
    aim: str
    systems: tuple[str, ...] = SYSTEMS

    def metric(self, name: str) -> Metric:
        """The metric of that name. Raises KeyError."""
        return {metric.name: metric for metric in self.metrics}[name]


_US = (Metric("p50_us", "us", True), Metric("p99_us", "us", True))
_RATE = Metric("per_s", "1/s", False)
_CPU = Metric("cpu_us", "us of CPU each", True)  # of all processes of the system: both ends, and daemons
_LOST = Metric("lost", "lost", True)

ROWS = (
    RowSpec(
        "ask_1",
        "pair",
        "ask between two processes, one outstanding",
        _US,
        (Goal("p50_us", 1.5, LIMIT),),
        "p50 within 1.5x of raw pyzmq",
    ),
    RowSpec(
        "ask_64",
        "pair",
        "ask between two processes, 64 outstanding",
        (_RATE, _CPU),
        (Goal("per_s", 0.5, LIMIT),),
        "at least half the rate of raw pyzmq",
    ),
    RowSpec(
        "tell",
        "pair",
        "one-way messages between two processes, through the actor layer",
        (_RATE, _CPU, _LOST, Metric("disordered", "out of order", True)),
        (Goal("per_s", 500_000), Goal("per_s", 0.3, LIMIT), Goal("lost", 0), Goal("disordered", 0)),
        "at least 500,000/s and 0.3x of raw pyzmq; none lost, all in order",
    ),
    RowSpec(
        "ask_local",
        "local",
        "ask between two actors of one process",
        _US,
        (Goal("p50_us", 20, strict=True),),
        "p50 under 20 us",
        (OURS, *PEERS),
    ),
    RowSpec(
        "storm",
        "storm",
        "1,000 actors across 8 processes, all asking all at random for 10 s",
        (_RATE, Metric("p50_ms", "ms", True), Metric("p99_ms", "ms", True), _LOST),
        (Goal("lost", 0), Goal("per_s", 1, "every peer", strict=True)),
        "no loss, p99 reported, faster than every peer",
        (OURS, *PEERS),
    ),
    RowSpec(
        "spawn",
        "crowd",
        "spawn 10,000 actors in one process",
        (Metric("seconds", "s", True), Metric("kib_each", "KiB each", True)),
        (Goal("seconds", 1, strict=True), Goal("kib_each", 2, strict=True)),
        "under 1 s, under 2 KiB each",
        (OURS, *PEERS),
    ),
    RowSpec(
        "killed",
        "death",
        "detection of a killed process (SIGKILL)",
        (Metric("ms", "ms", True),),
        (Goal("ms", 50, strict=True),),
        "under 50 ms",
        (OURS, *PEERS),
    ),
    RowSpec(
        "frozen",
        "death",
        "detection of a frozen process (SIGSTOP)",
        (Metric("seconds", "s", True),),
        (Goal("seconds", 1, bound_metric="bound_s"),),
        "within the configured bound",
        (OURS, *PEERS),
    ),
    RowSpec(
        "restart",
        "restart",
        "restart of a crashed actor, until its first message is handled",
        (Metric("ms", "ms", True),),
        (Goal("ms", 20, strict=True), Goal("ms", 0.1, "ray")),
        "under 20 ms, 10x faster than Ray",
        (OURS, *PEERS),
    ),
    RowSpec(
        "restart_process",
        "restart",
        "restart of a crashed process, until its actor's first message is handled",
        (Metric("ms", "ms", True),),
        (),
        "no goal: what Ray and xoscar restart is a process",
        (OURS, *PEERS),
    ),
    RowSpec(
        "idle",
        "crowd",
        "idle cost of 1,000 actors",
        (Metric("percent", "% of a core", True),),
        (Goal("percent", 1, strict=True),),
        "under 1 % of a core",
        (OURS, *PEERS),
    ),
)


def row(name: str) -> RowSpec:
    """The row of that name. Raises KeyError."""
    return {spec.name: spec for spec in ROWS}[name]


def middle(samples: Samples, row_name: str, system: str, metric: str) -> float | None:
    """The median over the rounds; NaN when most rounds had no result, None when it was not measured."""
    values = samples.get(row_name, {}).get(system, {}).get(metric)
    if not values:
        return None
    # A missing result counts as later than every result.
    found = median(math.inf if math.isnan(value) else value for value in values)
    return math.nan if math.isinf(found) else found


def met(spec: RowSpec, samples: Samples) -> bool | None:
    """Whether every goal of the row is met; None when it has none, or a needed value was not measured."""
    verdicts = [_met(spec, goal, samples) for goal in spec.goals]
    if not verdicts or (None in verdicts and False not in verdicts):
        return None
    return all(verdicts)


def bound_of(spec: RowSpec, goal: Goal, samples: Samples) -> float | None:
    """The reference of our median; None when its base was not measured."""
    if goal.bound_metric:
        return middle(samples, spec.name, OURS, goal.bound_metric)
    if not goal.of:
        return goal.bound
    others = PEERS if goal.of == "every peer" else (goal.of,)
    theirs = [middle(samples, spec.name, other, goal.metric) for other in others]
    measured = [value for value in theirs if value is not None and not math.isnan(value)]
    if not measured:
        return None
    return goal.bound * (min(measured) if spec.metric(goal.metric).lower else max(measured))


def _met(spec: RowSpec, goal: Goal, samples: Samples) -> bool | None:
    ours = middle(samples, spec.name, OURS, goal.metric)
    bound = bound_of(spec, goal, samples)
    if ours is None or bound is None:
        return None
    if math.isnan(ours):
        return False
    if goal.strict and ours == bound:
        return False
    return ours <= bound if spec.metric(goal.metric).lower else ours >= bound
