"""Facts of a shared reward service: calls at the connections of its clients, and the size of its queue.

Owns the shapes. `gleaner.chaos.service_sim` makes them.
"""

import hashlib

from gleaner.chaos.invariants.facts import Fact


class CallBegan(Fact, frozen=True):
    """A process of a job calls the service. number: of the call, unique in the run. process: `host/kind#pid`.
    role: of its host. response: that it is for, see `response_key`."""

    number: int
    process: str
    role: str
    response: bytes


class CallEnded(Fact, frozen=True):
    """That call is over. left: its connection was closed before the answer was whole. died: with the process
    of the client."""

    number: int
    left: bool
    died: bool = False


class ServiceSeen(Fact, frozen=True):
    """A look at the service. items: that it has, waiting or with a worker; calm_s: since the last fault there
    or end of its process."""

    items: int
    calm_s: float


def response_key(split: str, index: int, tokens: bytes) -> bytes:
    """Distinguishes the responses (u32, raw) of a run."""
    return hashlib.blake2b(f"{split}/{index}/".encode() + tokens, digest_size=16).digest()
