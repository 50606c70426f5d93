"""RecentNames: a bounded set of names that forgets the oldest first. Pure."""

from collections.abc import Iterator


class RecentNames:
    """At most `most` names, in the order in which they were last added."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: dict[str, None] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def add(self, *names: str) -> None:
        """Make these names the newest."""
        for name in names:
            self._names.pop(name, None)
            self._names[name] = None
        while len(self._names) > self._most:
            del self._names[next(iter(self._names))]

    def discard(self, name: str) -> None:
        """Forget this name, if it is known."""
        self._names.pop(name, None)

    def take(self) -> list[str]:
        """Return and remove all names."""
        names = list(self._names)
        self._names.clear()
        return names
