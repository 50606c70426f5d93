"""What it means to fuzz a decoder: give it bytes, and judge.

Owns the verdict. A decoder may refuse with the errors that it names; anything else that it raises is a find,
and so is a *wrong accept*: a value that does not come back equal from its own encoding.
"""

from collections.abc import Callable
from dataclasses import dataclass


class WrongAccept(AssertionError):
    """Bytes were taken for a value that is not the same once it is encoded and decoded again."""


@dataclass(frozen=True)
class Target:
    """One decoder. `take(data)` decodes and judges; it raises one of `refusals` for what the decoder refuses,
    `WrongAccept`, or what the decoder should not have raised. `seeds` are accepted ones."""

    name: str
    take: Callable[[bytes], None]
    refusals: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]

    def accepts(self, data: bytes) -> bool:
        """Whether `data` is a value; raises for every find."""
        try:
            self.take(data)
        except self.refusals:
            return False
        return True


def same(first: object, again: object) -> None:
    """Raises `WrongAccept` unless both are equal."""
    if first != again:
        raise WrongAccept(f"{first!r:.500} came back as {again!r:.500}")
