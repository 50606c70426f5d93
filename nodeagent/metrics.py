"""Prometheus metrics of a host: their table, and their values from process states.

Owns the table and the translation. Pure; `metrics_server` asks the processes and serves the text.
docs/metrics.md lists the same table, and a test compares the two.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from gleaner.supervisor.inspection.vitals import ASK_BOUNDS_S
from gleaner.supervisor.system_messages import ActorState, SystemState

MAX_ACTORS = 1000
"""Actors of one process that have series of their own; the others are summed up under `OTHERS`."""
MAX_FIGURES = 48
"""Numeric figures of one actor's `summary` that have series."""
MAX_LABEL = 120
"""Characters of one label's value."""
OTHERS = "(others)"
PROCESS = ("node", "process")
ACTOR = (*PROCESS, "actor")


@dataclass(frozen=True, slots=True)
class MetricDescription:
    """Description of one metric for Prometheus."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


METRICS = tuple(
    MetricDescription(f"gleaner_{name}", kind, labels, text)
    for name, kind, labels, text in (
        ("process_up", "gauge", PROCESS, "1 if the process answered in time, else 0"),
        ("process_cpu_seconds_total", "counter", PROCESS, "processor time, user and system"),
        ("process_resident_bytes", "gauge", PROCESS, "resident memory"),
        ("process_open_files", "gauge", PROCESS, "open file descriptors, sockets included"),
        ("loop_lag_seconds", "gauge", PROCESS, "how long the event loop was held up at worst, last 10 s"),
        ("actors", "gauge", PROCESS, "living actors"),
        ("waits", "gauge", PROCESS, "registered waits of actors on something outside themselves"),
        ("oldest_wait_seconds", "gauge", PROCESS, "age of the longest wait; 0 without one"),
        ("waits_expired_total", "counter", (*PROCESS, "reason"), "waits that passed their deadline"),
        ("dead_letters_total", "counter", (*PROCESS, "reason"), "undeliverable messages"),
        ("refused_total", "counter", (*PROCESS, "reason"), "input that was refused on control links"),
        ("suspects", "gauge", PROCESS, "other processes that this one suspects to be dead"),
        ("links", "gauge", (*PROCESS, "state"), "ends of control links, by state"),
        ("link_unacked_messages", "gauge", PROCESS, "messages that the other ends have not acknowledged"),
        ("link_waiting_senders", "gauge", PROCESS, "one-way messages that wait for credit on a link"),
        ("link_sent_total", "counter", PROCESS, "messages handed to control links"),
        ("link_received_total", "counter", PROCESS, "messages taken from control links"),
        ("link_resent_total", "counter", PROCESS, "messages sent again after a break"),
        ("link_duplicates_total", "counter", PROCESS, "messages that came twice and were dropped"),
        ("link_gaps_total", "counter", PROCESS, "messages that came out of turn and were asked for again"),
        ("ask_seconds", "histogram", PROCESS, "time from an ask of this process to its answer"),
        ("ask_failures_total", "counter", (*PROCESS, "error"), "asks of this process without an answer"),
        ("recoveries_total", "counter", (*PROCESS, "kind"), "what this process recovered from by itself"),
        ("mailbox_messages", "gauge", ACTOR, "messages that wait in the mailbox"),
        ("mailbox_limit", "gauge", ACTOR, "messages that the user lane of the mailbox holds at most"),
        ("handled_total", "counter", ACTOR, "messages handled by this incarnation; falls to 0 at a restart"),
        ("dropped_total", "counter", ACTOR, "messages dropped by this incarnation: full, late, unknown"),
        ("restarts_total", "counter", ACTOR, "restarts by its supervisor; child processes too"),
        ("actor_waits", "gauge", ACTOR, "waits of this actor; no series while there is none"),
        ("actor_oldest_wait_seconds", "gauge", ACTOR, "age of its longest wait; no series without one"),
        ("figure", "gauge", (*ACTOR, "figure"), "numeric figures that an actor reports of itself"),
    )
)
BY_NAME: Mapping[str, MetricDescription] = {metric.name: metric for metric in METRICS}

Sample = tuple[tuple[str, ...], float]


def families(states: Sequence[SystemState], silent: Sequence[tuple[str, str]]) -> Iterator[Metric]:
    """Every metric with the samples of `states`; `silent`: node and process of those that did not answer."""
    samples: dict[str, list[Sample]] = {metric.name: [] for metric in METRICS}
    samples["gleaner_process_up"] += [(place, 0.0) for place in silent]
    for state in states:
        for name, values, number in _of_process(state):
            samples[f"gleaner_{name}"].append((tuple(value[:MAX_LABEL] for value in values), number))
    for metric in METRICS:
        if metric.kind == "histogram":
            yield _histogram(metric, states)
        else:
            yield _family(metric, samples[metric.name])


def _family(metric: MetricDescription, samples: Iterable[Sample]) -> Metric:
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind == "counter":
        family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    else:
        family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family


def _histogram(metric: MetricDescription, states: Iterable[SystemState]) -> Metric:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    bounds = [*(format(bound, "g") for bound in ASK_BOUNDS_S), "+Inf"]
    for state in states:
        vitals = state.vitals
        if vitals is not None and len(vitals.ask_counts) == len(bounds):
            buckets = list(zip(bounds, map(float, accumulate(vitals.ask_counts)), strict=True))
            family.add_metric((state.node, state.process), buckets, vitals.ask_sum_s)
    return family


def _of_process(state: SystemState) -> Iterator[tuple[str, tuple[str, ...], float]]:
    place = (state.node, state.process)
    yield "process_up", place, 1.0
    yield "actors", place, float(sum(1 for actor in state.actors if not actor.pid) + state.left_out)
    yield "suspects", place, float(len(state.suspects))
    for name, counts in (
        ("waits_expired_total", state.expired_waits),
        ("dead_letters_total", state.dead_letters),
        ("refused_total", state.refused),
    ):
        for reason, count in counts.items():
            yield name, (*place, reason), float(count)
    if state.vitals is not None:
        vitals = state.vitals
        yield "process_cpu_seconds_total", place, vitals.cpu_s
        yield "process_resident_bytes", place, float(vitals.rss_bytes)
        yield "process_open_files", place, float(vitals.files)
        yield "loop_lag_seconds", place, vitals.lag_s
        yield "waits", place, float(vitals.waits)
        yield "oldest_wait_seconds", place, vitals.oldest_wait_s
        for error, count in vitals.ask_failed.items():
            yield "ask_failures_total", (*place, error), float(count)
        for kind, count in vitals.recoveries.items():
            yield "recoveries_total", (*place, kind), float(count)
    if state.links is not None:
        for name, count in state.links.states.items():
            yield "links", (*place, name), float(count)
        yield "link_unacked_messages", place, float(state.links.unacked)
        yield "link_waiting_senders", place, float(state.links.waiting)
        for name, count in state.links.totals.items():
            yield f"link_{name}_total", place, float(count)
    for actor in [*state.actors[:MAX_ACTORS], *_others(state.actors[MAX_ACTORS:])]:
        yield from _of_actor((*place, actor.name), actor)


def _of_actor(place: tuple[str, ...], actor: ActorState) -> Iterator[tuple[str, tuple[str, ...], float]]:
    yield "restarts_total", place, float(actor.restarts)
    if actor.pid:
        return
    yield "mailbox_messages", place, float(actor.mailbox)
    yield "mailbox_limit", place, float(actor.mailbox_limit)
    yield "handled_total", place, float(actor.handled)
    yield "dropped_total", place, float(actor.dropped)
    if actor.waits:
        yield "actor_waits", place, float(actor.waits)
        yield "actor_oldest_wait_seconds", place, actor.oldest_wait_s
    numbers = [(name, value) for name, value in actor.figures.items() if isinstance(value, int | float)]
    for name, value in numbers[:MAX_FIGURES]:
        yield "figure", (*place, name), float(value)


def _others(actors: Sequence[ActorState]) -> list[ActorState]:
    if not actors:
        return []
    return [
        ActorState(
            name=OTHERS,
            incarnation=0,
            state="",
            mailbox=sum(actor.mailbox for actor in actors),
            mailbox_limit=sum(actor.mailbox_limit for actor in actors),
            handled=sum(actor.handled for actor in actors),
            dropped=sum(actor.dropped for actor in actors),
            restarts=sum(actor.restarts for actor in actors),
            last_failure="",
            waits=sum(actor.waits for actor in actors),
            oldest_wait_s=max(actor.oldest_wait_s for actor in actors),
        )
    ]
