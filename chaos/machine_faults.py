"""Faults of what surrounds the actors: disks, clouds, operators, engines, trainers.

Owns the shapes and their ranges, as `faults` does for all others. They are drawn only where a campaign names
them. `apply_machines` injects them.
"""

from typing import Annotated, Literal

from msgspec import Meta

from gleaner.chaos.fault_base import Count, Fault, Length, Seconds, Where

Rotten = Literal["checkpoint", "copy", "image"]
"""A file at rest: the newest durable checkpoint, the newest host copy of the trainer's state, or the newest
image of weights."""
Trouble = Literal["refuses", "late", "extra"]
Order = Literal["preempt", "drain", "stop", "kill", "resubmit", "submit_other", "publish"]
Garbage = Literal["vocabulary", "nan", "positive", "ticket", "ragged", "version"]


class SlowDisk(Fault, frozen=True, kw_only=True, tag="slow_disk"):
    """Each access to the disk of a host takes `factor` times as long, for `for_s`; `bytes_per_s` above 0 is
    the rate of its writes. `stall`: nothing is done at all until the time is over."""

    host: Where
    for_s: Length
    factor: Annotated[float, Meta(ge=1, le=10_000)] = 1.0
    bytes_per_s: Annotated[float, Meta(ge=0)] = 0.0
    stall: bool = False

    @property
    def over_s(self) -> float:
        return self.at_s + self.for_s


class PowerLoss(Fault, frozen=True, kw_only=True, tag="power_loss"):
    """A host loses its power, and what its disk had only promised: writes of its last moments that no
    `fsync` forced out are missing, torn, or stored in another order. It is up again `back_s` later.
    `false_syncs`: the disk also promised what it was forced to write."""

    host: Where
    back_s: Length
    false_syncs: bool = False

    @property
    def over_s(self) -> float:
        return self.at_s + self.back_s


class BitRot(Fault, frozen=True, kw_only=True, tag="bit_rot"):
    """A bit of a file at rest flips, from `at_s` on as soon as there is such a file. Processes that have
    loaded an image die, so that it is read again, and sometimes the agent that serves it. With `back_s` the
    host loses its power, and is up so much later."""

    host: Where
    what: Rotten
    back_s: Seconds = 0.0

    @property
    def over_s(self) -> float:
        return self.at_s + self.back_s


class CloudTrouble(Fault, frozen=True, kw_only=True, tag="cloud_trouble"):
    """The cloud refuses each host that is requested in `for_s`, or delivers it `late_s` late; or it delivers
    one that was not requested."""

    how: Trouble
    for_s: Length
    late_s: Seconds = 0.0

    @property
    def over_s(self) -> float:
        return self.at_s + self.for_s + self.late_s


class OperatorCommand(Fault, frozen=True, kw_only=True, tag="operator_command"):
    """A command of an operator. `preempt`: a host has `notice_s` left (and is not taken away). `drain`: it
    gets no new requests until `notice_s` later. `stop`: its node agent stops in order. `kill`: its engine
    gets SIGKILL. `resubmit`: the same job once more. `submit_other`: another job, while one runs. `publish`:
    a version that is not the next one."""

    what: Order
    host: Where = "@head"
    notice_s: Seconds = 0.0

    @property
    def over_s(self) -> float:
        return self.at_s + self.notice_s


class BadEngine(Fault, frozen=True, kw_only=True, tag="bad_engine"):
    """The next `count` turns of the engine of a host are garbage: a token outside of the vocabulary, a
    log-prob that is no number or above 0, a ticket that was never given, columns of unequal length, weights
    of another version."""

    host: Where
    how: Garbage
    count: Count = 1


class SlowTrainer(Fault, frozen=True, kw_only=True, tag="slow_trainer"):
    """All that the trainer computes takes `factor` times as long, for `for_s`; its messages do not."""

    factor: Annotated[float, Meta(gt=1, le=100)]
    for_s: Length

    @property
    def over_s(self) -> float:
        return self.at_s + self.for_s


AnyMachineFault = SlowDisk | PowerLoss | BitRot | CloudTrouble | OperatorCommand | BadEngine | SlowTrainer
