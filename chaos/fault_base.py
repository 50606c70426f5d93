"""Base of all faults: the types of their fields, and the time at which one begins and is over.

Owns the ranges that several kinds share. `faults` and `machine_faults` define the kinds.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(ge=0, le=1e7)]
Length = Annotated[float, Meta(gt=0, le=1e5)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=10_000)]
Where = Annotated[
    str, Meta(pattern=r"^(@(head|reserved|preemptible|reward|scores)(/[0-9]{1,3})?|[A-Za-z0-9_.-]{1,64})$")
]
"""A host; see the module."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of all: `at_s` is the time of the run at which the fault begins (or from which on it waits for its
    event)."""

    at_s: Seconds

    @property
    def over_s(self) -> float:
        """Time at which no effect of it is left, as far as the schedule determines it."""
        return self.at_s
