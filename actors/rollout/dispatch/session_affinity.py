"""SessionAffinity: requests of a conversation go to the instance of its last turn.

Owns which instance served each session last. Soft state: a restarted manager has forgotten it. If there are
too many sessions, the least recently used is forgotten. That costs a prefill, nothing more. Pure.

Source: turn-wise routing, ROSE 4.3. Its last rule but one, waiting for the instance, is not followed: a
request goes elsewhere if that instance has no free capacity.
"""

from collections.abc import Iterable

MAX_SESSIONS = 65_536
MAX_SESSION = 200
"""Characters of one session name."""


class SessionAffinity:
    """See the module."""

    def __init__(self, most: int = MAX_SESSIONS) -> None:
        self._most = most
        self._instances: dict[str, str] = {}  # by session, the last used at the end
        self._sessions: dict[str, str] = {}  # by request

    def __len__(self) -> int:
        return len(self._instances)

    def begun(self, request: str, session: str) -> None:
        """Record the session of this request; "": none."""
        if session:
            self._sessions[request] = session

    def ended(self, request: str) -> None:
        """It is over, or forgotten."""
        self._sessions.pop(request, None)

    def of(self, request: str) -> str:
        """Its session, "" for none."""
        return self._sessions.get(request, "")

    def preferred(self, request: str) -> str:
        """The instance that has its conversation, "" if none is known."""
        return self._instances.get(self._sessions.get(request, ""), "")

    def sent(self, instance: str, requests: Iterable[str]) -> None:
        """These were given to an instance."""
        if not self._sessions:
            return
        for request in requests:
            session = self._sessions.get(request)
            if session is not None:
                self._instances.pop(session, None)
                self._instances[session] = instance
        while len(self._instances) > self._most:
            del self._instances[next(iter(self._instances))]
