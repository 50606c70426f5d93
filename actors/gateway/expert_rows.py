"""ExpertRowsOf: the experts of a response, joined from the rows of its attempts.

Owns which row counts if several attempts report the same token. Pure. Row p belongs to the attempt that made
token p + 1, which also reported that token's log-prob; rows of the prompt belong to the first attempt. If an
attempt reported no rows (its engine was killed), the rows of the next attempt replace them. That attempt
computed them when it read the same tokens as its prefix, whatever version of the weights it had.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gleaner.actors.gateway.ask import Routed
from gleaner.actors.protocol.batches import Span
from gleaner.actors.protocol.experts import ExpertRows

DTYPES: dict[str, np.dtype[np.generic]] = {
    "uint8": np.dtype("u1"),
    "uint16": np.dtype("<u2"),
    "int32": np.dtype("<i4"),
}
AFTERWARDS = 1 << 30
"""Attempt number of rows that were computed again when all tokens were there."""


@dataclass(slots=True)
class _AttemptRows:
    total: int
    parts: list[NDArray[np.generic]] = field(default_factory=list)
    count: int = 0


class ExpertRowsOf:
    """The rows of one request. See the module."""

    def __init__(self) -> None:
        self._rows_by_attempt: dict[int, _AttemptRows] = {}
        self.held_bytes = 0

    def receive(self, message: ExpertRows, attempt: int | None = None) -> None:
        """Add a part; `attempt` replaces the message's own. A malformed part, or one that does not continue
        the part before, is ignored: its rows are missing, and are computed again."""
        number = message.attempt if attempt is None else attempt
        dtype = DTYPES.get(message.dtype)
        if dtype is None or min(message.first, message.count - 1, message.width - 1) < 0:
            return
        if len(message.rows) != message.count * message.width * dtype.itemsize:
            return
        if message.first == 0:
            self._forget(number)
            self._rows_by_attempt[number] = _AttemptRows(message.total)
        rows_by_attempt = self._rows_by_attempt.get(number)
        if (
            rows_by_attempt is None
            or rows_by_attempt.count != message.first
            or rows_by_attempt.total != message.total
        ):
            return
        if rows_by_attempt.parts and rows_by_attempt.parts[0].shape[1] != message.width:
            return
        part = np.frombuffer(message.rows, dtype).reshape(message.count, message.width)
        rows_by_attempt.parts.append(part)
        rows_by_attempt.count += message.count
        self.held_bytes += part.nbytes

    def joined(self, spans: Sequence[Span], prompt: int, tokens: int) -> Routed | None:
        """Rows of all tokens of prompt and response but the last; None if some are missing, or differ in
        width.

        spans: which attempt made which of the response's `tokens`.
        """
        whole = {
            number: np.concatenate(rows_by_attempt.parts)
            for number, rows_by_attempt in self._rows_by_attempt.items()
            if rows_by_attempt.parts and rows_by_attempt.count == rows_by_attempt.total
        }
        found: list[NDArray[np.generic]] = []
        for begin, end, attempt in owned(spans, prompt, tokens):
            tells = (number for number in sorted(whole) if number >= attempt and len(whole[number]) >= end)
            number = next(tells, None)
            if number is None:
                return None
            found.append(whole[number][begin:end])
        if not found or len({part.shape[1] for part in found}) != 1:
            return None
        return Routed(np.concatenate(found))

    def _forget(self, attempt: int) -> None:
        rows_by_attempt = self._rows_by_attempt.pop(attempt, None)
        if rows_by_attempt is not None:
            self.held_bytes -= sum(part.nbytes for part in rows_by_attempt.parts)


def owned(spans: Sequence[Span], prompt: int, tokens: int) -> list[tuple[int, int, int]]:
    """(first row, row behind the last, attempt), in order: row p belongs to the attempt that made token p +
    1."""
    rows, begin = [], 0
    for span in spans:
        end = min(prompt + span.start + span.count, prompt + tokens) - 1
        if end > begin:
            rows.append((begin, end, span.attempt))
            begin = end
    return rows
