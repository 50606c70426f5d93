"""Planted bugs in rounds: the queue of deferred draws, and the race of a short round."""

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation

DRAWS = "gleaner.actors.training.round_draws"
RACE = "gleaner.actors.rollout.state.race"
EVENTS = "gleaner.actors.rollout.state.group_events"


def _bug(name: str, safeguard: str, edit: Edit, caught_by: tuple[str, ...]) -> Mutation:
    return Mutation(name, safeguard, (edit,), caught_by, campaign="rounds")


ROUNDS: tuple[Mutation, ...] = (
    _bug(
        "new seeds for deferred draws",
        "a deferred draw is rolled out again with its own seeds",
        Edit(DRAWS, "        if not self._own_seeds:\n", "        if batch:\n"),
        ("rounds",),
    ),
    _bug(
        "uniform groups are deferred",
        "the draw of a group that was dropped as uniform is over",
        Edit(DRAWS, "        used = {*kept, *dropped}\n", "        used = {*kept}\n"),
        ("rounds",),
    ),
    _bug(
        "the newest deferred draw first",
        "the queue of deferred draws is first in, first out",
        Edit(
            DRAWS,
            "        deferred = [one for one in self._queue if one not in taken][:count]\n",
            "        deferred = [one for one in reversed(self._queue) if one not in taken][:count]\n",
        ),
        ("rounds",),
    ),
    _bug(
        "a deferred draw in two long rounds",
        "draws of an open round are not launched again",
        Edit(
            DRAWS,
            "        return {number for one in self._rounds.values() if not one.settled for number in "
            "one.draws}\n",
            "        return set()\n",
        ),
        ("rounds",),
    ),
    _bug(
        "a long round that is late",
        "a step is a long round as soon as the queue fills one",
        Edit(
            "gleaner.actors.training.rounds",
            "    if waiting >= rule.prompts or drains:\n",
            "    if waiting > rule.prompts or drains:\n",
        ),
        ("rounds",),
    ),
    _bug(
        "a race by time",
        "which groups count follows from their tokens, not from when they end",
        Edit(EVENTS, '    if event.race == "tokens":\n', "    if event.race is None:\n"),
        ("races",),
    ),
    _bug(
        "samples by time",
        "which samples of a group count follows from their tokens, not from when they end",
        Edit(EVENTS, 'by_time=event.race == "time")', "by_time=bool(event.race))"),
        ("races",),
    ),
    _bug(
        "a running group that cannot be overtaken",
        "a group counts only when no other can come before it any more",
        Edit(
            RACE,
            "        place += 1\n",
            "        place += one.closed\n",
        ),
        ("races",),
    ),
    _bug(
        "longer groups first",
        "of the groups of a race the shortest count",
        Edit(
            RACE,
            "_BY_KEY = itemgetter(1, 0)",
            "_BY_KEY = lambda one: (-one.tokens, one.number)",
        ),
        ("races",),
    ),
)
