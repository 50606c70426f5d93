"""Planted bugs in the widths of engines."""

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation

SCHEDULER = "gleaner.actors.cluster.scheduler"


def _bug(name: str, safeguard: str, old: str, new: str) -> Mutation:
    return Mutation(name, safeguard, (Edit(SCHEDULER, old, new),), ("plans survive",), campaign="widths")


WIDTHS: tuple[Mutation, ...] = (
    _bug(
        "the width of the step before",
        "the width that is answered is the planned one",
        "            width=widths.width if widths is not None else 0,\n",
        "            width=now.widths.width if now.widths is not None else 0,\n",
    ),
    _bug(
        "widths that a new plan forgets",
        "what is known of rounds and widths outlives a step",
        "planned_step=planned_step, seeding=seeding, widths=widths)",
        "planned_step=planned_step, seeding=seeding, widths=None)",
    ),
    _bug(
        "a width before its plan that is not journaled",
        "the width that is decided before the step's end is in the journal before any host has it",
        "            await self._become(structs.replace(now, widths=widths))\n",
        "            self._now = structs.replace(now, widths=widths)\n",
    ),
)
