"""How a pull ends early: every reason a type, each with what is done and stays."""

from collections.abc import Sequence

from transport.bulk_frames import Chunk


class PullError(Exception):
    """A pull ended early. `done` are the chunks that are verified and stay: pull the rest elsewhere.
    `wrong_chunks`: how often one came whose hash was wrong."""

    def __init__(self, message: str, done: Sequence[Chunk] = ()) -> None:
        super().__init__(message)
        self.done = tuple(done)
        self.wrong_chunks = 0


class SourceGone(PullError):
    """The source does not serve that version, or its connection broke."""


class SourceLags(PullError):
    """The source is there but has not got on itself for a while: what it waits for may be gone."""


class Unauthorized(PullError):
    """The source does not accept the token for that version."""


class BadRange(PullError):
    """The source's file has no such range: its content is not what the manifest describes."""


class BadHash(PullError):
    """A chunk arrived wrong every time, or one after the other did; `chunk` tells the last."""

    def __init__(self, message: str, done: Sequence[Chunk], chunk: Chunk) -> None:
        super().__init__(message, done)
        self.chunk = chunk


class PullTimeout(PullError):
    """No chunk came by the deadline, or nothing arrived for a while."""
