"""Planted bugs: each removes a safeguard of production code, to be caught.

A campaign must catch each. Owns the list. `gleaner.chaos.mutate` plants a bug; `gleaner.chaos.hunt` chooses
the campaign and its length. An edit is a piece of the present source; a test fails as soon as one no longer
fits, so the list follows the code.
"""

from collections.abc import Mapping

from gleaner.chaos.mutations.capacity import CAPACITY
from gleaner.chaos.mutations.contents import CONTENTS
from gleaner.chaos.mutations.gateway import GATEWAY_BUGS
from gleaner.chaos.mutations.machines import MACHINES
from gleaner.chaos.mutations.messages import MESSAGES
from gleaner.chaos.mutations.mutation import Mutation
from gleaner.chaos.mutations.requests import REQUESTS
from gleaner.chaos.mutations.rewards import REWARDS
from gleaner.chaos.mutations.rollout import ROLLOUT
from gleaner.chaos.mutations.rounds import ROUNDS
from gleaner.chaos.mutations.stairs import STAIRS
from gleaner.chaos.mutations.training import TRAINING
from gleaner.chaos.mutations.widths import WIDTHS

__all__ = ["BY_NAME", "MUTATIONS", "Mutation"]

MUTATIONS: tuple[Mutation, ...] = (
    *ROLLOUT,
    *REQUESTS,
    *TRAINING,
    *MESSAGES,
    *CONTENTS,
    *CAPACITY,
    *GATEWAY_BUGS,
    *MACHINES,
    *REWARDS,
    *ROUNDS,
    *STAIRS,
    *WIDTHS,
)
BY_NAME: Mapping[str, Mutation] = {mutation.name: mutation for mutation in MUTATIONS}
