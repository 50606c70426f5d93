"""Tracer: the port for tracing a message that is sent or handled.

Owns only the port. `ActorSystem.tracer` is None unless tracing is on for the process; the adapter to
OpenTelemetry is at the edge (`gleaner.nodeagent.traces`). The envelope's `trace`, a W3C traceparent, travels
between
processes: a process without a tracer passes it on unchanged.
"""

from collections.abc import Mapping
from typing import Protocol

from gleaner.supervisor.message import Message


class Span(Protocol):
    """Something that takes time; ends once."""

    @property
    def trace(self) -> str:
        """The traceparent for messages that this one causes."""

    def end(self, problem: BaseException | None = None) -> None:
        """It is over; `problem` if it failed."""


class Tracer(Protocol):
    """Makes spans. `parent` is the traceparent of what caused one, or "": then a new trace begins."""

    def tell(self, source: str, to: str, message: Message, parent: str) -> str:
        """A message leaves and no answer is awaited; the traceparent that it carries."""

    def ask(self, source: str, to: str, message: Message, parent: str) -> Span:
        """A message leaves and its answer is awaited until `end`; `trace` is the value that it carries."""

    def note(self, actor: str, what: str, facts: Mapping[str, str | int | float], parent: str) -> None:
        """A point in time that no message shows by itself."""

    def handle(self, actor: str, message: Message, parent: str) -> Span:
        """`actor` begins to handle a message that carried `parent`; the messages that it sends until `end`
        are caused by it."""
