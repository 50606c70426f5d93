"""`Figures`: the server's metrics in Prometheus' format, with SGLang's names.

Owns no state of requests.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gleaner.actors.engine.builtin_server.active_request import ActiveRequest
from gleaner.actors.engine.builtin_server.status_schema import Load

LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Figures:
    """Counts since the start; gauges are those of the load that `text` is given."""

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model

        def counter(name: str, text: str) -> Counter:
            return Counter(f"sglang:{name}", text, ["model_name"], registry=self._registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"sglang:{name}", text, ["model_name"], registry=self._registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(
                f"sglang:{name}", text, ["model_name"], registry=self._registry, buckets=LATENCY_S
            )

        self._requests = counter("num_requests", "requests that have ended")
        self._aborted = counter(
            "num_aborted_requests", "those of them that were ended by order or by failure"
        )
        self._prompt = counter("prompt_tokens", "tokens of their prompts")
        self._generated = counter("generation_tokens", "tokens that were made for them")
        self._first = histogram("time_to_first_token_seconds", "from the request to its first token")
        self._whole = histogram("e2e_request_latency_seconds", "from the request to its end")
        self._running = gauge("num_running_reqs", "requests that hold a slot")
        self._queue = gauge("num_queue_reqs", "requests that wait for one")
        self._used = gauge("num_used_tokens", "tokens of the requests with the engine")
        self._usage = gauge("token_usage", "part of the cache that they fill")
        self._rate = gauge("gen_throughput", "tokens a second, lately")

    def ended(self, running: ActiveRequest) -> None:
        """A request has ended, or its client has disconnected."""
        self._requests.labels(self._model).inc()
        self._prompt.labels(self._model).inc(len(running.asked.prompt) + len(running.asked.prefix))
        self._generated.labels(self._model).inc(len(running.tokens))
        if running.finish is not None and running.finish.type == "abort":
            self._aborted.labels(self._model).inc()
        if running.first_s is not None:
            self._first.labels(self._model).observe(running.first_s - running.began_s)
        if running.ended_s is not None:
            self._whole.labels(self._model).observe(running.ended_s - running.began_s)

    def text(self, load: Load) -> bytes:
        """The page of `/metrics`."""
        for gauge, value in (
            (self._running, load.num_running_reqs),
            (self._queue, load.num_waiting_reqs),
            (self._used, load.num_used_tokens),
            (self._usage, load.token_usage),
            (self._rate, load.gen_throughput),
        ):
            gauge.labels(self._model).set(value)
        return generate_latest(self._registry)
