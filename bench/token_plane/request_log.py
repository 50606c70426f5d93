"""The token log of one request, for a client that has no frames: the same that the manager keeps."""

from array import array

from actors.rollout.token_log import RequestLog


class Collected:
    """The log of request `number`, fed token by token."""

    def __init__(self, number: int) -> None:
        self._log = RequestLog(
            id=f"peer/0/{number}",
            batch="peer",
            group=0,
            sample=number,
            prompt=array("I"),
            seed=0,
            max_new_tokens=1 << 22,
            temperature=1.0,
            version=1,
            attempts=1,
        )

    def append(self, token: int, logprob: float) -> None:
        """One token of the only attempt."""
        self._log.append(token, logprob, "router", 1)
