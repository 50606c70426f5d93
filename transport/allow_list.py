"""AllowList: the public keys that a process admits, shared by all its sockets.

Owns the list and its listeners; every socket checks keys against it and subscribes to its changes. Knows no
file (`key_follower` reads those) and no socket.
"""

from collections.abc import Callable

MAX_REVOKED = 4096  # keys remembered as revoked; beyond it the oldest is only unknown again

OnChange = Callable[[frozenset[str], frozenset[str]], None]  # (keys that were added, keys that were removed)


class AllowList:
    """Public keys (z85) that may talk to this process."""

    def __init__(self, admitted: frozenset[str]) -> None:
        self._admitted = admitted
        self._revoked: dict[str, None] = {}  # ordered by age
        self._listeners: list[OnChange] = []

    @property
    def admitted(self) -> frozenset[str]:
        """All keys that may connect now."""
        return self._admitted

    def admits(self, key: str) -> bool:
        """Whether the key may connect to this process and send messages."""
        return key in self._admitted

    def may_dial(self, key: str) -> bool:
        """Whether this process may connect to the key. A caller that names a peer by its key vouches for the
        key (`--head-key`), so the key need not be on the list. A key that was removed from the list is not
        dialled again."""
        return key not in self._revoked

    def replace(self, admitted: frozenset[str]) -> None:
        """Make this the list, and notify the listeners before anything else is received."""
        added, removed = admitted - self._admitted, self._admitted - admitted
        if not added and not removed:
            return
        self._admitted = admitted
        for key in added:
            self._revoked.pop(key, None)
        for key in sorted(removed):
            self._revoked[key] = None
        while len(self._revoked) > MAX_REVOKED:
            del self._revoked[next(iter(self._revoked))]
        for listener in tuple(self._listeners):
            listener(added, removed)

    def subscribe(self, on_change: OnChange) -> Callable[[], None]:
        """Subscribe to every change, notified in the turn in which it is made; call the returned function to
        unsubscribe."""
        self._listeners.append(on_change)

        def leave() -> None:
            if on_change in self._listeners:
                self._listeners.remove(on_change)

        return leave
