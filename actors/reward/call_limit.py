"""CallLimit: how many calls of a reward service a job has under way, by the service's answers. Pure.

A service takes what its queues have room for and refuses the rest (429). Each refusal lowers the limit to
one call less than there are, and each verdict raises it by one: so a job follows the room that the service
has for it beside other jobs, and does not repeat calls that find none.
"""


class CallLimit:
    """See the module. most: calls, whatever the service takes; it begins with that."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.calls = most
        """Calls that may be under way now, 1 at least."""

    def answered(self) -> None:
        """The service gave a verdict."""
        self.calls = min(self.calls + 1, self._most)

    def refused(self, under_way: int) -> None:
        """The service has no room for one of the calls that are under way."""
        self.calls = max(1, min(self.calls, under_way) - 1)
