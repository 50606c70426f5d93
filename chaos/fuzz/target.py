"""Target: a decoder under fuzzing, with the verdict on each input.

Owns the verdict. A decoder may refuse with the errors that it declares. Any other exception is a find, and so
is a *wrong accept*: a value that is not equal after encoding and decoding.
"""

from collections.abc import Callable
from dataclasses import dataclass


class WrongAccept(AssertionError):
    """The decoder accepted bytes as a value that changes when it is encoded and decoded again."""


@dataclass(frozen=True)
class Target:
    """One decoder. `take(data)` decodes and judges; it raises one of `refusals` for a refused input,
    `WrongAccept`, or an unexpected exception of the decoder. `seeds` are accepted inputs."""

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
