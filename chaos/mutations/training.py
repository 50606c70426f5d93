"""Planted bugs in steps, their records and their weights.

They are in `gleaner.actors.training`, `gleaner.actors.cluster` and `gleaner.actors.weights`.
"""

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation

TRAINING: tuple[Mutation, ...] = (
    Mutation(
        "repeat a lost step in another order",
        "a step that was lost with its host is repeated in its old micro-batches",
        (
            Edit(
                "gleaner.actors.training.trainer",
                "        return [[there[group] for group in batch] for batch in record.micro_batches]",
                "        return [[there[group] for group in sorted(there)]]",
            ),
        ),
        ("I5", "I6"),
        lead="a host lost before its checkpoint",
    ),
    Mutation(
        "record a step twice",
        "a recorded step is not recorded again",
        (
            Edit(
                "gleaner.actors.cluster.state_manager",
                "        if trained is not None and trained.step > self._trained:\n"
                "            if trained.step != self._trained + 1:",
                "        if trained is not None:\n            if trained.step > self._trained + 1:",
            ),
        ),
        ("I5",),
        lead="a trainer that starts again",
    ),
    Mutation(
        "train on unscored samples",
        "a sample whose verifier failed permanently is in no step",
        (
            Edit(
                "gleaner.actors.training.step_samples",
                "    return [(sample, sample.score) for sample in group.samples if sample.score is not None]",
                "    return [(sample, sample.score or 0.0) for sample in group.samples]",
            ),
        ),
        ("I7",),
        campaign="hunt-unscored",
        lead="verdicts that are none",
    ),
    Mutation(
        "rewind not journaled",
        "training that lost its newest state journals the rewind",
        (
            Edit(
                "gleaner.actors.cluster.state_manager",
                "            await self.ctx.journal.append(Rewound(step=newest))\n",
                "",
            ),
        ),
        ("I5",),
        lead="a host lost before its checkpoint",
    ),
    Mutation(
        "record a step before its state is sealed",
        "a step is recorded only when its state survives the death of the trainer",
        (
            Edit(
                "gleaner.actors.training.trainer",
                "micro_batches=tuple(done.micro_batches))\n",
                'micro_batches=tuple(done.micro_batches))\n        await self._save(commit, b"")\n',
            ),
        ),
        ("I5", "I6", "I8"),
    ),
    Mutation(
        "no verification of chunks",
        "each chunk of weights is compared with its hash on arrival",
        (
            Edit(
                "gleaner.transport.bulk_exchange",
                "        if digest == chunk.digest:\n",
                "        if True:\n",
            ),
        ),
        ("I6",),
        ("corrupt_chunk",),
    ),
    Mutation(
        "wait without polling",
        "a wait for a notification also polls: the notification may be lost",
        (
            Edit(
                "gleaner.actors.training.loop",
                "                await wait.look(self._news, STEP_POLL_S)",
                "                await wait.look(self._news)",
            ),
        ),
        ("I8",),
        lead="a trainer that dies behind its step",
    ),
    Mutation(
        "staleness bound not enforced",
        "no trained token is older than the staleness bound: by the time at which batches open, by their "
        "gates, by the trainer's own count",
        (
            Edit(
                "gleaner.actors.training.loop",
                "        last = min(step + self._settings.rollout.staleness, self._settings.job.steps)\n",
                "        last = min(step + 1 + self._settings.rollout.staleness, self._settings.job.steps)\n",
            ),
            Edit(
                "gleaner.actors.training.submission",
                "max(0, step - 1 - rollout.staleness) if rollout.staleness",
                "0 if rollout.staleness",
            ),
            Edit(
                "gleaner.actors.training.staleness",
                "                    if not 0 <= age <= self.bound:\n",
                "                    if False:\n",
            ),
        ),
        ("I3", "draws"),
        campaign="hunt-ahead",
    ),
    Mutation(
        "seeding window not shortened",
        "an extended seeding window ends when the first instance serves",
        (
            Edit(
                "gleaner.actors.training.trainer",
                "COLOCATED_S, until_served=True)\n",
                "COLOCATED_S)\n",
            ),
        ),
        ("seeding window",),
    ),
)
