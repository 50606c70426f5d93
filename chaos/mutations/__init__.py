"""Planted bugs: each removes a safeguard of production code, to be caught.

A campaign must catch each. Owns the list. `chaos.mutate` plants a bug; `chaos.hunt` chooses the campaign and
its length. An edit is a piece of the present source; a test fails as soon as one no longer fits, so the list
follows the code.
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
