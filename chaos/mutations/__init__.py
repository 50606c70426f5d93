"""Planted bugs: each takes a safeguard out of production code, and a campaign must notice.

Owns the list. How a bug is planted is `chaos.mutate`; which campaign hunts it, and how long, is `chaos.hunt`.
An edit is a piece of the source as it stands; a test fails as soon as one fits no longer, so the list follows
the code.
"""

from collections.abc import Mapping

from chaos.mutations.messages import MESSAGES
from chaos.mutations.mutation import Mutation
from chaos.mutations.requests import REQUESTS
from chaos.mutations.rollout import ROLLOUT
from chaos.mutations.training import TRAINING

__all__ = ["BY_NAME", "MUTATIONS", "Mutation"]

MUTATIONS: tuple[Mutation, ...] = (*ROLLOUT, *REQUESTS, *TRAINING, *MESSAGES)
BY_NAME: Mapping[str, Mutation] = {mutation.name: mutation for mutation in MUTATIONS}
