"""Stream facts: credit and frames of token streams, as they pass the network.

Owns the shapes. `gleaner.chaos.stream_wires` makes them.
"""

from typing import Literal

from gleaner.chaos.invariants.facts import Fact

Fate = Literal["delivered", "refused", "dropped"]


class CreditGranted(Fact, frozen=True):
    """A receiver sent that frames of a stream up to `upto` may be sent. receiver: numbers the lives of
    receivers; in_hand: the frame up to which it has all, where it sent that; -1: it did not."""

    receiver: int
    stream: str
    incarnation: int
    upto: int
    in_hand: int = -1


class FrameArrived(Fact, frozen=True):
    """A token frame arrived, and was handled. fate: it was delivered to the layer above; or its whole
    incarnation was refused; or it was dropped."""

    receiver: int
    stream: str
    incarnation: int
    seq: int
    fate: Fate
