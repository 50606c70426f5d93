"""OpenTelemetry `Tracer`: a span for each message that is sent or handled.

Owns the exporters and their end. Imports OpenTelemetry only when tracing is on; otherwise a process has no
tracer at all. Spans wait in a bounded queue and leave from a thread of their own; the SDK drops spans when
the queue is full and never blocks.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.configs.schema import Traces
from gleaner.nodeagent.exit_codes import USAGE, CannotRun
from gleaner.supervisor.message import Message, kind_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span as OtelSpan

MAX_ATTRIBUTES = 8
"""Fields of a message that its span shows, of plain and short values: enough to find a request by its id."""
MAX_TEXT = 64
EXPORT_S = 2.0
"""Deadline of one export, and of the last one when the process ends."""
QUEUED = 2048  # the SDK's own default: half a second of a busy process

log = logging.getLogger("nodeagent")


class OpenTelemetryTracer:
    """`gleaner.supervisor.tracing.Tracer` over an SDK provider; `close` ends it."""

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("gleaner")
        kinds = trace.SpanKind
        self._kinds = {"tell": kinds.PRODUCER, "ask": kinds.CLIENT, "handle": kinds.CONSUMER}
        self._extract = TraceContextTextMapPropagator().extract

    def tell(self, source: str, to: str, message: Message, parent: str) -> str:
        span = self._begin("tell", source, to, message, parent)
        span.end()
        return span.trace

    def ask(self, source: str, to: str, message: Message, parent: str) -> "MessageSpan":
        return self._begin("ask", source, to, message, parent)

    def note(self, actor: str, what: str, facts: Mapping[str, str | int | float], parent: str) -> None:
        attributes = {f"message.{name}": value for name, value in facts.items()}
        attributes["gleaner.to"] = actor
        context = self._extract({"traceparent": parent}) if parent else self._extract({})
        self._tracer.start_span(f"note {what}", context=context, attributes=attributes).end()

    def handle(self, actor: str, message: Message, parent: str) -> "MessageSpan":
        return self._begin("handle", "", actor, message, parent)

    def _begin(self, what: str, source: str, to: str, message: Message, parent: str) -> "MessageSpan":
        attributes: dict[str, str | int | float | bool] = {"gleaner.to": to, "gleaner.kind": kind_of(message)}
        if source:
            attributes["gleaner.source"] = source
        attributes.update(_fields(message))
        # An empty context, not the thread's: the only parent is the one that the message carried.
        context = self._extract({"traceparent": parent}) if parent else self._extract({})
        span = self._tracer.start_span(
            f"{what} {kind_of(message)}", context=context, kind=self._kinds[what], attributes=attributes
        )
        return MessageSpan(span)

    async def close(self) -> None:
        """Send the waiting spans, for `EXPORT_S` at most."""
        # This thread is not joined at exit: a collector that does not answer must not block the end of the
        # process.
        over = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        over.start()
        await asyncio.to_thread(over.join, EXPORT_S)


class MessageSpan:
    """`gleaner.supervisor.tracing.Span`."""

    def __init__(self, span: "OtelSpan") -> None:
        self._span = span
        context = span.get_span_context()
        self.trace = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def end(self, problem: BaseException | None = None) -> None:
        if problem is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute("error.type", type(problem).__name__)
            self._span.set_status(Status(StatusCode.ERROR, str(problem)))
        self._span.end()


def open_tracer(
    traces: Traces, node: str, process: str, log_file: Path, log_bytes: int
) -> OpenTelemetryTracer | None:
    """The tracer that the settings ask for; None if they ask for none. Raises CannotRun (exit code 2) if the
    packages are missing.

    log_file: the process's log; spans of exporter "file" are written beside it, as JSON lines, in
    `<process>.spans`. log_bytes: size of that file before it is rotated; one older file is kept.
    """
    if traces.exporter == "none":
        return None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        exporter = _exporter(traces, log_file, log_bytes)
    except ImportError as problem:
        raise CannotRun(
            USAGE,
            f"traces.exporter = {traces.exporter!r} needs OpenTelemetry, and {problem.name} is not there: "
            "pip install 'gleaner[traces]'",
        ) from problem
    resource = Resource.create(
        {"service.name": "gleaner", "service.instance.id": f"{node}/{process}", "host.name": node}
    )
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(traces.sample_ratio)), resource=resource, shutdown_on_exit=False
    )
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=QUEUED,
            schedule_delay_millis=500,
            export_timeout_millis=EXPORT_S * 1000,
        )
    )
    log.info("traces go to %s (%g of them)", traces.exporter, traces.sample_ratio)
    return OpenTelemetryTracer(provider)


def _exporter(traces: Traces, log_file: Path, log_bytes: int) -> "SpanExporter":
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    if traces.exporter == "console":
        return ConsoleSpanExporter(out=sys.stderr, formatter=_line)
    if traces.exporter == "file":
        file = RotatingFileHandler(log_file.with_suffix(".spans"), maxBytes=log_bytes, backupCount=1)
        return ConsoleSpanExporter(out=_Lines(file), formatter=_line)  # type: ignore[arg-type]
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    exporter: SpanExporter = OTLPSpanExporter(endpoint=traces.endpoint, timeout=EXPORT_S)
    return exporter


def _line(span: "ReadableSpan") -> str:
    return str(span.to_json(indent=None)) + "\n"


class _Lines:
    """A rotating file as the exporter sees one."""

    def __init__(self, file: RotatingFileHandler) -> None:
        self._file = file

    def write(self, text: str) -> None:
        self._file.emit(logging.makeLogRecord({"msg": text.rstrip("\n")}))

    def flush(self) -> None:
        self._file.flush()


def _fields(message: Message) -> Iterator[tuple[str, str | int | float | bool]]:
    shown = 0
    for name in message.__struct_fields__:
        value = getattr(message, name)
        plain = isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= MAX_TEXT)
        if plain and shown < MAX_ATTRIBUTES:
            shown += 1
            yield f"message.{name}", value
