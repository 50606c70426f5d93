"""LostWrites: no stream of a journal has a hole where a write failed.

A store that fails a write may take the next one: a full disk has space again. A write that its actor called
for before it learnt of the failure counts on the failed one, so it fails as well. Pure, in two halves that
share nothing: the caller's side has the terms of streams, the writer's side the failures. A term of a stream
ends when its actor learns of a failure: it knows then that all fail that it called for in that term and
behind the failed one. Bounded by the streams of a process: each half keeps one entry a stream.
"""


class WriteTerms:
    """The caller's side: the term of each stream whose writer learnt of a failure."""

    def __init__(self) -> None:
        self._terms: dict[str, tuple[int, int]] = {}  # by stream: incarnation, its term

    def of(self, stream: str, incarnation: int) -> int:
        """The term in which a write is called for."""
        known, term = self._terms.get(stream, (incarnation, 0))
        return term if known == incarnation else 0

    def failed(self, stream: str, incarnation: int, term: int) -> None:
        """The caller learns that a write of that term has failed."""
        known, _ = self._terms.get(stream, (0, 0))
        if incarnation >= known and self.of(stream, incarnation) == term:
            self._terms[stream] = incarnation, term + 1


class LostWrites:
    """The writer's side: the newest failure of each stream."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, int, Exception]] = {}  # by stream: incarnation, term, reason

    def why(self, stream: str, incarnation: int, term: int) -> Exception | None:
        """Why a write must fail too; None: it may be tried."""
        failure = self._failures.get(stream)
        if failure is None or failure[0] != incarnation or term > failure[1]:
            return None
        return failure[2]

    def ended(self, stream: str, incarnation: int, term: int, problem: Exception | None) -> None:
        """A write that was tried has ended; problem: None where it is kept."""
        if problem is not None:
            self._failures[stream] = incarnation, term, problem
        else:
            self._failures.pop(stream, None)
