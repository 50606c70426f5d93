"""RunOrder: one line to a worker process with the campaign, the seed and the faults.

Owns the shape. The answer is a `tally.RunTold`, on a line too.
"""

import msgspec

from gleaner.chaos.schedule import Schedule


class RunOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Run this seed of this campaign, with another schedule than the drawn one where one is given.
    availability: see `plan.load`. stop_at: stop at the first violation of that check, "": of any."""

    campaign: str
    seed: int
    schedule: Schedule | None = None
    stop_at: str | None = None
    availability: tuple[str, ...] = ()
