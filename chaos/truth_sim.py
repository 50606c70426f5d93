"""Truth of a simulated run: prompts, scores, tokens and weights by the models themselves.

Owns the weights that were published in a run, by their root, as far as their images were observed, and the
calls of the models (`gleaner.sim.models`) that `gleaner.chaos.invariants.truth` names. Seeds and settings
are derived anew from the job's settings.
"""

import hashlib
import logging
import math
from array import array
from collections.abc import Sequence
from functools import lru_cache

from gleaner.actors.reward.scoring import WorkerSpec
from gleaner.actors.training.sample import Sample
from gleaner.chaos.invariants.shadow import ShadowRequest
from gleaner.chaos.invariants.truth import TrainedOn, Wanted, WantedRounds
from gleaner.configs.schema import Config
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.job_model import JobModel
from gleaner.sim.models.tokens import request_origin, response_with_logprobs
from gleaner.sim.models.trainer_work import first_weights, measured, next_weights, sample_digest
from gleaner.sim.models.weight_bytes import BrokenImage, weights_of

KEPT = 512
"""Responses that are kept: several checks compare with the same ones."""

log = logging.getLogger("chaos")


class SimTruth:
    """See the module: an `invariants.truth.Truth`. config: of the run; rig: any host with an engine."""

    def __init__(self, job_model: JobModel, config: Config, rig: HostDevices) -> None:
        rollout = config.rollout
        self.wanted = Wanted(
            seed=config.job.seed,
            steps=config.job.steps,
            eval_every=config.job.eval_every,
            problems=config.train_problems,
            heldout=config.heldout_problems,
            prompts=rollout.prompts,
            samples=rollout.samples,
            over_sampling=rollout.over_sampling,
            drop_uniform=rollout.drop_uniform,
            max_refills=rollout.max_refills,
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            eval_temperature=rollout.eval_temperature,
            staleness=rollout.staleness,
            rounds=_rounds(config),
        )
        self._problems = job_model.problems(WorkerSpec())
        self._engine = job_model.engine(config, rig)
        self._weights: dict[bytes, bytes] = {}
        self._response = lru_cache(maxsize=KEPT)(self._drawn)
        self.prompt = lru_cache(maxsize=KEPT)(self._prompt)

    def published(self, root: bytes, image: bytes) -> None:
        """This image was published under this root."""
        try:
            self._weights.setdefault(root, weights_of(image))
        except BrokenImage as problem:
            log.warning("published under %s: %s", root.hex()[:12], problem)

    def of(self, request: ShadowRequest, root: bytes, count: int) -> bytes | None:
        """A `samples.ResponseOf`."""
        made = self.made(request, root, count)
        return None if made is None else made[0]

    def _prompt(self, split: str, index: int) -> bytes:
        return array("I", self._problems.prompt(split, index)).tobytes()

    def score(self, split: str, index: int, tokens: bytes) -> float:
        """See `Truth`."""
        return self._problems.score(split, index, array("I", tokens).tolist())

    def seed(self, batch: str, group: int, sample: int) -> int:
        """See `Truth`; written again here on purpose."""
        name = f"{self.wanted.seed}/{batch}/{group}/{sample}"
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) // 2

    def length(self, request: ShadowRequest) -> int:
        """See `Truth`."""
        return self._engine.length(request.seed, request.asked.prompt, request.limit)

    def made(self, request: ShadowRequest, root: bytes, count: int) -> tuple[bytes, bytes] | None:
        """See `Truth`."""
        asked = request.asked
        if not self._engine.tokens_follow_inputs:
            return self._response(request.seed, count, b"")
        weights = self._weights.get(root)
        if weights is None:
            return None
        origin = request_origin(request.seed, asked.prompt, asked.temperature, asked.sampling)
        return self._response(origin, count, weights)

    def _drawn(self, origin: int, count: int, weights: bytes) -> tuple[bytes, bytes]:
        tokens, logprobs = response_with_logprobs(origin, count, self._engine.vocabulary, weights)
        return tokens.tobytes(), logprobs.tobytes()

    def weights(self, root: bytes) -> bytes | None:
        """See `Truth`."""
        return self._weights.get(root)

    def first_weights(self) -> bytes:
        """See `Truth`."""
        return first_weights(self.wanted.seed)

    def next_weights(self, before: bytes, number: int, batches: Sequence[Sequence[TrainedOn]]) -> bytes:
        """See `Truth`."""
        digests = [[_digest(one) for one in batch] for batch in batches]
        return next_weights(before, number, digests)

    def losses(self, weights: bytes) -> tuple[float, float]:
        """See `Truth`."""
        return measured(weights)


def _rounds(config: Config) -> WantedRounds | None:
    rounds, rollout = config.rounds, config.rollout
    if rounds.mode == "off":
        return None
    return WantedRounds(
        prompts=math.ceil(rounds.prompts_factor * rollout.prompts),
        samples=math.ceil(rounds.samples_factor * rollout.samples),
        own_seeds=rounds.seeds == "own",
        by_tokens=rounds.race == "tokens",
        drain=rounds.drain,
        auto=rounds.mode == "auto",
        planned=rounds.prompts_plan == "model",
        history=rounds.history,
    )


def _digest(one: TrainedOn) -> bytes:
    prompt, tokens, logprobs = array("I", one.prompt), array("I", one.tokens), array("f", one.logprobs)
    return sample_digest(Sample(prompt, tokens, logprobs, one.advantage))
