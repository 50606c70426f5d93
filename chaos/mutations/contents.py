"""Planted bugs in what a sample contains besides its tokens, and in what a step consists of.

Each is a slip of one line, in `gleaner.actors.rollout`, `gleaner.actors.reward` or `gleaner.actors.training`.
The campaign of every change hunts them, with its usual faults.
"""

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation


def _slip(
    name: str, safeguard: str, module: str, right: str, wrong: str, caught_by: tuple[str, ...]
) -> Mutation:
    return Mutation(
        name, safeguard, (Edit(f"gleaner.actors.{module}", right, wrong),), caught_by, campaign="ci"
    )


CONTENTS: tuple[Mutation, ...] = (
    # -- log-probs --
    _slip(
        "no log-prob after a move",
        "the log-prob of each token is kept, also of the first one at another instance",
        "rollout.state.frame_rows",
        "        request.append(token, logprob, event.instance, event.incarnation, made)\n",
        "        request.append(token, 0.0 if len(request) else logprob, event.instance, event.incarnation, "
        "made)\n",
        ("contents", "updates"),
    ),
    _slip(
        "a snapshot without log-probs",
        "a manager that comes back from a snapshot has the log-probs of every token",
        "rollout.state.snapshot",
        "        logprobs=logprobs,\n",
        "        logprobs=bytes(len(logprobs)),\n",
        ("contents", "updates"),
    ),
    _slip(
        "shifted log-probs after a restart",
        "log-probs that are read from a snapshot belong to their own tokens",
        "rollout.state.token_columns",
        "(self._logprobs, logprobs)):\n            values",
        "(self._logprobs, logprobs[4:] + logprobs[:4])):\n            values",
        ("contents", "updates"),
    ),
    _slip(
        "shifted log-probs in training",
        "the trainer has the log-prob of each token beside it",
        "training.step_samples",
        '            logprobs=array("f", sample.logprobs),\n',
        '            logprobs=array("f", sample.logprobs[4:] + sample.logprobs[:4]),\n',
        ("updates",),
    ),
    # -- what is dispatched --
    _slip(
        "the temperature of the first dispatch",
        "a request that moves goes on with its temperature",
        "rollout.dispatch.dispatcher",
        "            temperature=log.temperature,\n",
        "            temperature=1.0 if log.attempts else log.temperature,\n",
        ("I1", "dispatches"),
    ),
    _slip(
        "the prompt of the first dispatch",
        "a request that moves goes on with its whole prompt",
        "rollout.dispatch.dispatcher",
        "            prompt=log.prompt.tobytes(),\n",
        "            prompt=(log.prompt[-8:] if log.attempts else log.prompt).tobytes(),\n",
        ("I1", "dispatches"),
    ),
    _slip(
        "evaluate at the training temperature",
        "held-out problems are sampled at their own temperature",
        "training.submission",
        "            temperature=self._config.rollout.eval_temperature,\n",
        "            temperature=self._config.rollout.temperature,\n",
        ("draws",),
    ),
    # -- prompts --
    _slip(
        "hand out the first prompt",
        "a group is handed out with its own prompt",
        "rollout.batches.group_delivery",
        "        prompt=logs[0].prompt.tobytes(),\n",
        "        prompt=batch.groups[0][0].prompt.tobytes(),\n",
        ("contents",),
    ),
    _slip(
        "train on the first prompt",
        "each sample is trained with the prompt of its group",
        "training.step_samples",
        '            prompt=array("I", group.prompt),\n',
        '            prompt=array("I", groups[0].prompt),\n',
        ("updates",),
    ),
    # -- rewards --
    _slip(
        "the reward of half a response",
        "a response is scored as a whole",
        "rollout.batches.scoring",
        "tokens=log.tokens_bytes(),\n",
        "tokens=log.tokens_bytes()[: len(log) // 2 * 4],\n",
        ("verdicts",),
    ),
    _slip(
        "score the first tokens",
        "a verifier gets all tokens of a response",
        "reward.pipe",
        'array("I", tokens).tolist()',
        'array("I", tokens).tolist()[:32]',
        ("verdicts",),
    ),
    _slip(
        "one verdict for a group",
        "each response of a group has a verdict of its own",
        "rollout.batches.scoring",
        '                    key=f"score/{log.id}/{failures}",',
        '                    key=f"score/{log.batch}/{log.group}/{failures}",',
        ("verdicts",),
    ),
    _slip(
        "score for another problem",
        "a response is scored as the answer to its own problem",
        "rollout.batches.scoring",
        "batches[log.batch].prompt(log.group)\n",
        "batches[log.batch].prompt(0)\n",
        ("verdicts",),
    ),
    _slip(
        "a raising verifier agrees",
        "a verifier that raises has given no score",
        "reward.pool",
        "            return Verdict(None, VERIFIER_FAILED, detail)\n",
        '            return Verdict(1.0, "ok", detail)\n',
        ("verdicts",),
    ),
    _slip(
        "a dead verifier agrees",
        "a verifier that hangs or dies has given no score",
        "reward.pool",
        "            item.settle(verdict)\n",
        '            item.settle(Verdict(1.0, "ok"))\n',
        ("verdicts",),
    ),
    # -- draws and refills --
    _slip(
        "a refill of the first problems",
        "a refill has the problems that follow in turn",
        "training.submission",
        '        return await self._fitting(int(batch.removeprefix("step-")), first, count)\n',
        '        return await self._fitting(int(batch.removeprefix("step-")), 0, count)\n',
        ("draws",),
    ),
    _slip(
        "a refill that skips a problem",
        "each problem that is drawn for a step is in it",
        "training.submission",
        "        drawn = await self._drawn(step, first + count)\n",
        "        drawn = await self._drawn(step, first + count + (first > 0))\n",
        ("draws",),
    ),
    _slip(
        "draw what was returned again and again",
        "a problem of an aborted group is drawn once more, and then no more",
        "training.problem_order",
        "            self._waiting.popleft()\n",
        "            self._waiting.rotate(-1)\n",
        ("draws", "I1"),
    ),
    _slip(
        "forget what was aborted",
        "the problems of aborted groups are drawn again",
        "training.problem_order",
        "        again = list(self._waiting)[:count]\n",
        "        again: list[int] = []\n",
        ("draws",),
    ),
    _slip(
        "a refill too many",
        "prompts are drawn in the place of dropped groups, and no more",
        "rollout.state.group_policy",
        "    short = launched(missing, rule.over_sampling) - len(undecided)\n",
        "    short = launched(missing, rule.over_sampling) + 1 - len(undecided)\n",
        ("selection",),
    ),
    # -- advantages --
    _slip(
        "the variance of a population",
        "the variance of a group is divided by one less than its samples",
        "training.advantages",
        " / (len(rewards) - 1)\n",
        " / len(rewards)\n",
        ("updates",),
    ),
    _slip(
        "a mean over one sample fewer",
        "the mean of a group is divided by its samples",
        "training.advantages",
        "    mean = sum(rewards) / len(rewards)\n",
        "    mean = sum(rewards) / (len(rewards) - 1)\n",
        ("updates",),
    ),
    _slip(
        "leave out what is average",
        "a sample without an advantage counts in its step",
        "training.step_samples",
        "        if sample.tokens  #",
        "        if sample.tokens and advantage  #",
        ("updates", "history"),
    ),
    # -- the history --
    _slip(
        "a reward over the groups",
        "the reward of a step is the mean over its samples",
        "training.step_samples",
        "        return sum(self.scores) / len(self.scores) if self.scores else None\n",
        "        return sum(self.scores) / len(self.groups) if self.scores else None\n",
        ("history",),
    ),
    _slip(
        "the loss in the place of the norm",
        "the history has the norm of a step's gradient under its name",
        "training.history_recorder",
        "grad_norm=records.finite(result.grad_norm)",
        "grad_norm=records.finite(result.loss)",
        ("history",),
    ),
    _slip(
        "an evaluation left out",
        "each version that is due is evaluated",
        "training.loop",
        "version % every == 0 and",
        "version % (every + 1) == 0 and",
        ("history",),
    ),
    _slip(
        "the spread of a sample",
        "the variance of an evaluation is that of its problems",
        "training.history_recorder",
        "from statistics import pvariance\n",
        "from statistics import variance as pvariance\n",
        ("history",),
    ),
    _slip(
        "an age for each span",
        "the mean staleness is over tokens",
        "training.staleness",
        "                    self.total += age * span.count\n",
        "                    self.total += age\n",
        ("history",),
    ),
    # -- groups --
    _slip(
        "equal scores are varied",
        "a group whose scores are all equal has no gradient",
        "rollout.state.group_events",
        "    return _VARIED if len(scores) > 1 else _UNIFORM\n",
        "    return _VARIED if scores else _UNIFORM\n",
        ("selection",),
    ),
    _slip(
        "drop no uniform group",
        "uniform groups are dropped while others may take their place",
        "rollout.state.group_policy",
        "        return self.most - self.wanted if self.drop_uniform else 0\n",
        "        return 0\n",
        ("selection",),
    ),
    _slip(
        "drop what is varied",
        "a group with two different scores counts",
        "rollout.state.group_events",
        "    return _VARIED if len(scores) > 1 else _UNIFORM\n",
        "    return _VARIED if len(scores) > 2 else _UNIFORM\n",
        ("selection", "I8"),
    ),
    _slip(
        "surplus before the end",
        "a group is surplus only when the step has all that it wants",
        "rollout.state.group_policy",
        "    if not missing:\n",
        "    if missing < 2:\n",
        ("selection", "I8"),
    ),
)
