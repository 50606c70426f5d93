"""What a logger is to the feed: the port that TensorBoard and Weights & Biases stand behind."""

from typing import Protocol

from rlctl.loggers.figures import Figures


class SinkFailed(RuntimeError):
    """A logger cannot be used, or not any longer; its message says what to do."""


class Sink(Protocol):
    """Takes figures in the order of the history. Calls come from one thread, and may block."""

    @property
    def where(self) -> str:
        """Where a person finds them."""

    def write(self, figures: Figures) -> None:
        """Take them. Raises SinkFailed."""

    def close(self) -> None:
        """Write out what is kept back. Raises SinkFailed."""
