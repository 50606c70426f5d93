"""Mutation: a planted bug with its safeguard, edits and the way to its effect.

Owns the shape. Imports nothing of the product: a worker process reads it before the bug is planted.
"""

from dataclasses import dataclass

from gleaner.chaos.mutate import Edit


@dataclass(frozen=True, slots=True)
class Mutation:
    """One planted bug.

    Args:
        name: of the bug, in words.
        safeguard: what is removed, as text.
        edits: where. Where several safeguards protect the same property, all are removed: one alone
            would rightly change nothing.
        caught_by: the checks that may notice; which one did is measured (`gleaner.chaos.hunt_results`).
            Where one alone is named, a hunt lasts until that one does.
        faults: kinds that lead there; a hunt has only these on, where any are named.
        campaign: the one that hunts it.
        lead: a schedule that leads there (`gleaner.chaos.guided_schedules`), where chance alone is too rare.
    """

    name: str
    safeguard: str
    edits: tuple[Edit, ...]
    caught_by: tuple[str, ...]
    faults: tuple[str, ...] = ()
    lead: str = ""
    campaign: str = "hunt"
