"""Figures of the gateway's HTTP for Prometheus: calls by route, durations.

Also the numbers of open calls and requests. Owns the registry of one server. Labels are routes of the table
and statuses: their number is bounded.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gleaner.actors.gateway.fleet import Loads, Versions

BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
OTHER = "other"
"""The path of calls that no route answers."""


class Figures:
    """The figures of one HTTP server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        labels = ("method", "path", "status")
        self._calls = Counter(
            "gleaner_gateway_calls", "HTTP calls that were answered.", labels, registry=registry
        )
        self._seconds = Histogram(
            "gleaner_gateway_call_seconds",
            "From the head of a call to the end of its answer.",
            ("path",),
            buckets=BUCKETS_S,
            registry=registry,
        )
        self._open = Gauge("gleaner_gateway_open_calls", "HTTP calls under way.", registry=registry)
        self._requests = Gauge(
            "gleaner_gateway_requests",
            "Requests of clients: with engines (running, pending), or waiting for one (queued).",
            ("state",),
            registry=registry,
        )
        self._engines = Gauge(
            "gleaner_gateway_engines_up", "1 if an engine serves weights.", registry=registry
        )
        self._version = Gauge(
            "gleaner_gateway_weight_version",
            "The newest version that is served; -1: none.",
            registry=registry,
        )

    def opened(self) -> None:
        """A call started."""
        self._open.inc()

    def closed(self, method: str, path: str, status: int, seconds: float) -> None:
        """A call was answered, or its client disconnected."""
        self._open.dec()
        self._calls.labels(method, path or OTHER, str(status)).inc()
        self._seconds.labels(path or OTHER).observe(seconds)

    def text(self, loads: Loads | None, versions: Versions | None) -> bytes:
        """All figures as text. None: the manager did not answer."""
        if loads is not None:
            for state in ("running", "pending", "queued"):
                self._requests.labels(state).set(getattr(loads, state))
        applied = None if versions is None else versions.applied
        self._engines.set(applied is not None)
        self._version.set(-1 if applied is None else applied)
        return generate_latest(self._registry)
