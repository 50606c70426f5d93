"""Sink: port between the feed and a logger (TensorBoard, Weights & Biases)."""

from typing import Protocol

from gleaner.rlctl.loggers.figures import Figures


class SinkFailed(RuntimeError):
    """A logger cannot be used, or no longer; its message gives the next step."""


class Sink(Protocol):
    """Takes figures in the order of the history. Calls are made from one thread, and may block."""

    @property
    def where(self) -> str:
        """Where a person finds the figures."""

    def write(self, figures: Figures) -> None:
        """Take them. Raises SinkFailed."""

    def close(self) -> None:
        """Write the buffered figures. Raises SinkFailed."""
