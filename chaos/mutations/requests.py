"""Planted bugs in the guarantees of a request: its weights, and its unique id.

They are in `gleaner.actors.rollout`.
"""

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation

REQUESTS: tuple[Mutation, ...] = (
    Mutation(
        "span with the batch's version",
        "a span carries the version under which its tokens were made",
        (
            Edit(
                "gleaner.actors.rollout.state.frame_rows",
                "    made = request.version if ticket.version is None else ticket.version\n",
                "    made = request.version\n",
            ),
        ),
        ("I3", "single requests"),
        campaign="hunt-singles",
    ),
    Mutation(
        "requeue without the version gate",
        "a requeued request continues under a version that its gate admits",
        (
            Edit(
                "gleaner.actors.rollout.journal.journaled_state",
                "        return {} if weights is None else {weights.version: weights.root}\n",
                "        return self.state.versions.roots(0) or {weights.version: weights.root}\n",
            ),
            Edit(
                "gleaner.actors.rollout.state.state",
                "            elif not (log.admits(event.version) and self._published(log, event.version)):\n",
                "            elif not self._published(log, event.version):\n",
            ),
        ),
        ("I3", "single requests"),
        campaign="hunt-singles",
    ),
    Mutation(
        "one request per attempt",
        "an id names one request, however often it is sent",
        (
            Edit(
                "gleaner.actors.rollout.requests.service",
                "        name = BATCH + message.id\n",
                '        name = f"{BATCH}{message.id}@{message.attempt}"\n',
            ),
            Edit(
                "gleaner.actors.rollout.requests.service",
                "batches.get(BATCH + message.id)",
                'batches.get(f"{BATCH}{message.id}@{message.attempt}")',
            ),
            Edit(
                "gleaner.actors.rollout.requests.service",
                "            batch=BATCH + message.id,\n",
                '            batch=f"{BATCH}{message.id}@{message.attempt}",\n',
            ),
        ),
        ("single requests",),
        campaign="hunt-singles",
    ),
    Mutation(
        "answer before commit",
        "tokens are in the journal before a caller receives them: no later incarnation returns others",
        (
            Edit(
                "gleaner.actors.rollout.requests.service",
                "        if name in self._ended and name in self._waiting:\n",
                "        if self._log(name).state is RequestState.FINISHED and name in self._waiting:\n",
            ),
        ),
        ("single requests",),
        ("kill_in_commit",),
        campaign="hunt-singles",
    ),
    Mutation(
        "a request at its deadline is never answered",
        "a request that is given up at its deadline is answered with the tokens that it has",
        (
            Edit(
                "gleaner.actors.rollout.requests.service",
                "        if name in self._ended and name in self._waiting:\n",
                "        if name in self._ended and name in self._waiting and not self._log(name).due:\n",
            ),
        ),
        ("single requests",),
        campaign="hunt-singles",
    ),
)
