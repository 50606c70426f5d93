"""Planted bugs in seeding windows whose engines leave in two halves."""

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation

SEEDING = "gleaner.actors.training.stair_seeding"


def _bug(name: str, safeguard: str, edit: Edit, caught_by: tuple[str, ...]) -> Mutation:
    return Mutation(name, safeguard, (edit,), caught_by, campaign="stairs")


STAIRS: tuple[Mutation, ...] = (
    _bug(
        "groups of a stair that are trained twice",
        "what was trained on a stair is not trained again after the window",
        Edit(
            SEEDING,
            "            untrained += reply.groups\n        return _with(reply, untrained)\n",
            "            untrained += [*piece, *reply.groups]\n        return _with(reply, untrained)\n",
        ),
        ("I2", "updates"),
    ),
    _bug(
        "a window that ends with its stair",
        "the other half of the engines rolls out to the end of the window",
        Edit(SEEDING, "(self._elapsed_s >= window_s and", "(self._spent.stair_s is not None and"),
        ("planned window",),
    ),
)
