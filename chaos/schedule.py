"""Schedule: the faults of one run, in order of time; as TOML.

Owns the order and the form. `faults` defines the faults.
"""

import tomllib
from collections.abc import Iterable
from typing import Annotated

import msgspec
import tomli_w
from msgspec import Meta

from gleaner.chaos.faults import KINDS, AnyFault, kind_of, to_json


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Faults of one run, sorted by time. `seed`: seed of the draws; it seeds the cluster too. `order`: seed
    of the order and pace of turns (`gleaner.sim.turn_order`); 0: first come, first served."""

    seed: Annotated[int, Meta(ge=0, le=2**62)] = 0
    order: Annotated[int, Meta(ge=0, le=2**62)] = 0
    faults: tuple[AnyFault, ...] = ()

    def with_faults(self, faults: Iterable[AnyFault]) -> "Schedule":
        """The same with other faults, sorted."""
        return msgspec.structs.replace(self, faults=in_order(faults))

    @property
    def over_s(self) -> float:
        """Time at which the last fault is over."""
        return max((fault.over_s for fault in self.faults), default=0.0)


class BadSchedule(ValueError):
    """An unreadable schedule: `str` gives the place and the fault."""


def in_order(faults: Iterable[AnyFault]) -> tuple[AnyFault, ...]:
    """Faults by time; those of one moment by their text, so that the order of drawing has no effect."""
    return tuple(sorted(faults, key=lambda fault: (fault.at_s, kind_of(fault), to_json(fault))))


def dump(schedule: Schedule) -> str:
    """The schedule as TOML: `seed`, `order`, and a `[[faults]]` table each."""
    return tomli_w.dumps(msgspec.to_builtins(schedule))


def load(text: str, name: str) -> Schedule:
    """Read a schedule from TOML; `name` begins the error text. Raises BadSchedule."""
    try:
        schedule = msgspec.convert(tomllib.loads(text), Schedule)
    except tomllib.TOMLDecodeError as problem:
        raise BadSchedule(f"{name}: not TOML: {problem}") from problem
    except msgspec.ValidationError as problem:
        raise BadSchedule(f"{name}: {problem}; kinds are {', '.join(KINDS)}") from problem
    return schedule.with_faults(schedule.faults)
