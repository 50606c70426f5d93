"""Planted bugs in the widths of engines."""

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation

SCHEDULER = "gleaner.actors.cluster.scheduler"
NONE_EARLY = Edit(
    "gleaner.actors.cluster.width_planner",
    "        hidden_s = min(state.idle_s, default=0.0)\n",
    "        return state\n",
)
"""Every width is decided with the plan of its step, as else where a report or data are missing."""


def _bug(name: str, safeguard: str, old: str, new: str, *more: Edit) -> Mutation:
    edits = (Edit(SCHEDULER, old, new), *more)
    return Mutation(name, safeguard, edits, ("plans survive",), campaign="widths")


WIDTHS: tuple[Mutation, ...] = (
    _bug(
        "the width of the step before",
        "the width that is answered is the planned one",
        "            width=widths.width if widths is not None else 0,\n",
        "            width=now.widths.width if now.widths is not None else 0,\n",
        NONE_EARLY,
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
