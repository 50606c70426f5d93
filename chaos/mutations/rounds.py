"""Planted bugs in rounds: the queue of deferred draws, and the race of a short round."""

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation

DRAWS = "gleaner.actors.training.round_draws"
JOURNAL = "gleaner.actors.training.job_journal"
RACE = "gleaner.actors.rollout.state.race"
LENGTH_RACE = "gleaner.actors.rollout.state.length_race"
EVENTS = "gleaner.actors.rollout.state.group_events"


def _bug(
    name: str,
    safeguard: str,
    edit: Edit,
    caught_by: tuple[str, ...],
    *more: Edit,
    campaign: str = "rounds",
) -> Mutation:
    return Mutation(name, safeguard, (edit, *more), caught_by, campaign=campaign)


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
    _bug(  # as in RollPacker's artifact: what is submitted is in the memory of the process alone
        "queue popped at submission",
        "a deferred draw leaves the queue when its step is trained, not when a long round is submitted",
        Edit(
            DRAWS,
            "                one.draws.extend(event.draws)\n",
            "                one.draws.extend(event.draws)\n"
            "                popped = [number for number in event.draws if number in self._queue]\n"
            "                self._launched.update({number: self._queue.pop(number) for number in popped})\n",
        ),
        ("rounds",),
        Edit(
            JOURNAL,
            "    return standing\n",
            "    opened = getattr(draws, '_rounds', {})\n"
            "    for name in [name for name, one in opened.items() if not one.settled]:\n"
            "        if opened[name].shape.kind == 'long':\n"
            "            del opened[name]\n"
            "    return standing\n",
        ),
    ),
    _bug(
        "a snapshot without the queue",
        "a snapshot of the controller's journal has the deferred draws",
        Edit(DRAWS, "            queue=tuple(self._queue.items()),\n", "            queue=(),\n"),
        ("rounds",),
    ),
    _bug(
        "uniform groups eat the surplus",
        "a short round launches spare groups for the uniform ones that are expected",
        Edit(
            "gleaner.actors.training.rounds",
            "    wanted = -(-rule.launched_prompts * dropped // counted)\n",
            "    wanted = 0\n",
        ),
        ("rounds",),
    ),
    _bug(
        "a snapshot without the share of uniform groups",
        "a snapshot of the controller's journal has the share of uniform groups",
        Edit(
            DRAWS,
            "            uniform=() if self._uniform is None else self._uniform.rounds(),\n",
            "            uniform=(),\n",
        ),
        ("rounds",),
    ),
    _bug(
        "a look at the next round that counts",
        "a width that is decided early looks at the next round without changing its draws",
        Edit(
            DRAWS,
            "later._history, later._uniform = None, copy(self._uniform)\n",
            "later._history = None\n",
        ),
        ("rounds",),
        campaign="widths",
    ),
    _bug(
        "rounds that end within a period",
        "with `auto` rounds begin and end between periods only",
        Edit(
            DRAWS,
            "        if self._auto and self._last_kind is not Kind.SHORT:\n"
            "            self._rounds_now = has_rounds(self._rounds_now, gain)\n",
            "        if self._auto:\n            self._rounds_now = self._last_kind is not Kind.SHORT\n",
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
        Edit(
            LENGTH_RACE,
            "    first = order[: rule.wanted]\n",
            "    first = order[places][: rule.wanted]\n",
        ),
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
        Edit(LENGTH_RACE, "np.argsort(lengths.tokens[runs]", "np.argsort(-lengths.tokens[runs]"),
    ),
)
