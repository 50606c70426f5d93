"""Delivery, Deferred and Exit: a message in a mailbox, and how it is answered.

Owns `Delivery`, the later answer (`Deferred`) and the report of how an incarnation ended (`Exit`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gleaner.supervisor.actor import Suspected, Terminated
from gleaner.supervisor.message import Message

Answer = Callable[[Message | Exception], None]


class Delivery(msgspec.Struct):
    """A message on its way into a handler. `deadline` is the loop's time at which the asker gives up;
    `source` is the sender's name; `trace` is passed on to what the handler sends."""

    message: Message | Terminated | Suspected | Leave
    deadline: float | None = None
    answer: Answer | None = None
    source: str = ""
    trace: str = ""


class Leave:
    """Laid into an actor's own mailbox by `Context.stop`."""


class Deferred:
    """Returned by a handler that will answer later: the mailbox goes on, the asker waits for `answer`.

    The actor that keeps them must bound their number; the asker's deadline bounds how long.
    """

    def __init__(self) -> None:
        self._answer: Answer | None = None
        self._outcome: Message | Exception | None = None

    @property
    def answered(self) -> bool:
        """Whether `answer` was called."""
        return self._outcome is not None

    def answer(self, outcome: Message | Exception) -> None:
        """Send the answer; later calls do nothing."""
        if self._outcome is None:
            self._outcome = outcome
            if self._answer is not None:
                self._answer(outcome)

    def bind(self, answer: Answer | None) -> None:
        """Called by the cell: set the receiver of the answer."""
        self._answer = answer
        if self._outcome is not None and answer is not None:
            answer(self._outcome)


@dataclass(frozen=True, slots=True)
class Exit:
    """End of an incarnation. `problem` is None for an ordered stop."""

    name: str
    incarnation: int
    problem: Exception | None

    @property
    def cause(self) -> str:
        """One line for logs and reports."""
        if self.problem is None:
            return "stopped"
        return f"crashed: {type(self.problem).__name__}: {self.problem}"
