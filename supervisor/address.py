"""Address of an actor: its endpoint, its name, and the life (incarnation) meant."""

from collections.abc import Callable

import msgspec

from gleaner.transport.wire import Peer

ANY_INCARNATION = 0
"""Addresses whichever incarnation holds the name; used where only the name is known."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A name, the process that holds it, and its incarnation (the fence against zombies)."""

    name: str
    endpoint: str
    public_key: str = ""
    incarnation: int = ANY_INCARNATION

    @property
    def peer(self) -> Peer:
        """The process to send to."""
        return Peer(self.endpoint, self.public_key)

    def __str__(self) -> str:
        return f"{self.name}#{self.incarnation}@{self.endpoint}"


class Incarnations:
    """Mints ever-growing incarnation numbers without a file.

    A number is the wall clock in milliseconds, or one more than the last number, whichever is larger. So it
    grows across restarts of the process and across a wiped state directory; the registry refuses the rest.
    """

    def __init__(self, wall_ms: Callable[[], int], last: int = 0) -> None:
        self._wall_ms = wall_ms
        self._last = last

    def mint(self) -> int:
        """A number larger than every earlier one."""
        self._last = max(self._last + 1, self._wall_ms())
        return self._last

    def at_least(self, known: int) -> None:
        """Never mint `known` or less again."""
        self._last = max(self._last, known)
