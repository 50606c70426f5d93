"""EngineFaults: turns of engines whose result must be garbage.

Owns the orders, by host, and the garbage: what no engine may return, so that a worker can see it. A turn
without rows is not spoiled; the order waits for the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gleaner.actors.engine.worker.port import StepResult


class EngineFaults:
    """Ordered garbage of one cluster."""

    def __init__(self) -> None:
        self._ordered: dict[str, deque[tuple[str, Callable[[], None]]]] = {}

    def order(self, host: str, how: str, came: Callable[[], None]) -> None:
        """One more turn on this host must be garbage of this kind; `came` is called when it is."""
        self._ordered.setdefault(host, deque()).append((how, came))

    def spoil(self, host: str, result: StepResult) -> StepResult:
        """The result of a turn on this host, as it is returned."""
        ordered = self._ordered.get(host)
        if not ordered or result.output is None or not len(result.output):
            return result
        how, came = ordered.popleft()
        came()
        return spoiled(result, how)


def spoiled(result: StepResult, how: str) -> StepResult:
    """The result with one piece of garbage in it. Raises ValueError for an unknown kind, or without rows."""
    output = result.output
    if output is None or not len(output):
        raise ValueError("a turn without rows cannot be spoiled")
    tickets, tokens, logprobs = output.tickets.copy(), output.tokens.copy(), output.logprobs.copy()
    match how:
        case "vocabulary":
            tokens[-1] = result.vocabulary + 7
        case "nan":
            logprobs[-1] = np.nan
        case "positive":
            logprobs[-1] = 1.5
        case "ticket":
            tickets[-1] += np.uint32(1_000_000)
        case "ragged":
            tokens = tokens[:-1]
        case "version":
            return replace(result, version=(result.version or 0) + 1)
        case _:
            raise ValueError(f"there is no garbage of kind {how}")
    return replace(result, output=replace(output, tickets=tickets, tokens=tokens, logprobs=logprobs))
