"""PullError and its subclasses: how a pull ends early.

Each reason is a type and carries the chunks that are done and stay valid.
"""

from collections.abc import Sequence

from gleaner.transport.bulk_frames import Chunk


class PullError(Exception):
    """A pull ended early. `done`: the chunks that are verified and stay; pull the rest elsewhere.
    `wrong_chunks`: how many chunks arrived with a wrong hash."""

    def __init__(self, message: str, done: Sequence[Chunk] = ()) -> None:
        super().__init__(message)
        self.done = tuple(done)
        self.wrong_chunks = 0


class SourceGone(PullError):
    """The source does not serve that version, or its connection broke."""


class SourceLags(PullError):
    """The source is alive but has made no progress for a while: the source that it waits for may be gone."""


class Unauthorized(PullError):
    """The source does not accept the token for that version."""


class BadRange(PullError):
    """The source's file has no such range: its content differs from the manifest."""


class BadHash(PullError):
    """One chunk arrived wrong every time, or several chunks in a row did; `chunk` is the last of them."""

    def __init__(self, message: str, done: Sequence[Chunk], chunk: Chunk) -> None:
        super().__init__(message, done)
        self.chunk = chunk


class PullTimeout(PullError):
    """No chunk arrived by the deadline, or nothing arrived for a while."""
