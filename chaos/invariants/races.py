"""Races: which groups and samples of a short round count, by the true lengths of its responses.

Owns the fates of the groups of open races by the manager's journal, and their comparison with the lengths
that the models give, also of responses that were aborted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.actors.protocol.rollout import Groups
from gleaner.actors.rollout.state.events import (
    BatchReleased,
    GroupsAdded,
    GroupsClosed,
    GroupsDropped,
    GroupsKept,
)
from gleaner.chaos.invariants.check import Check, some
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed
from gleaner.chaos.invariants.group_selection import uniform
from gleaner.chaos.invariants.shadow import Shadow, sample_of
from gleaner.chaos.invariants.truth import Truth, score_of


@dataclass(slots=True)
class _Race:
    """An open race. wanted, counted: groups, and samples of each, that count; launched: groups at its begin;
    total: groups so far; droppable: uniform groups that are dropped, 0 where they count."""

    wanted: int
    counted: int
    by_tokens: bool
    launched: int
    droppable: int
    total: int
    kept: set[int] = field(default_factory=set)
    uniform: set[int] = field(default_factory=set)
    keys: dict[int, tuple[int, int]] = field(default_factory=dict)


class ShortestCount(Check):
    """See the module."""

    fact_kinds, message_kinds = (Committed, MessagePassed), (Groups,)
    committed_kinds = (
        BatchSubmitted, BatchReleased, GroupsClosed, GroupsKept, GroupsDropped, GroupsAdded,
    )  # fmt: skip
    name = "races"
    promise = (
        "of the groups of a short round those with the shortest responses count, and of the samples of a "
        "group the shortest ones, whatever dies and moves meanwhile; the others are aborted only when that "
        "is certain"
    )
    meaning = (
        "If this fails, machines and their deaths decide what a policy learns from, or a step is trained on "
        "long responses that it was not to wait for."
    )

    def __init__(self, shadow: Shadow, truth: Truth) -> None:
        self._shadow, self._truth = shadow, truth
        self._races: dict[str, _Race] = {}

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, Committed) and fact.stream == MANAGER and not fact.snapshot:
            for message in fact.messages:
                yield from some(self._journaled(message))
        elif isinstance(fact, MessagePassed) and fact.direction == "out" and isinstance(fact.message, Groups):
            for group in fact.message.groups:
                race = self._races.get(group.samples[0].request.partition("/")[0]) if group.samples else None
                if race is not None and group.group not in race.kept:
                    yield f"group {group.group} of a short round was handed out, and it does not count yet"

    def _journaled(self, message: object) -> Iterator[str]:
        match message:
            case BatchSubmitted() if message.race and message.batch not in self._races:
                samples = message.counted or len(message.prompts[0].seeds)
                by_tokens = message.race == "tokens"
                launched = len(message.prompts)
                droppable = message.most - message.wanted if message.drop_uniform else 0
                self._races[message.batch] = _Race(
                    message.wanted, samples, by_tokens, launched, droppable, launched
                )
            case BatchReleased():
                self._races.pop(message.batch, None)
            case GroupsAdded() if message.batch in self._races:
                race = self._races[message.batch]
                if message.first == race.total:
                    race.total += len(message.prompts)
                    most = race.wanted if race.by_tokens else race.launched
                    if race.total - len(race.uniform) > most:
                        yield (
                            f"{len(message.prompts)} groups were added to {message.batch}, where now "
                            f"{race.total - len(race.uniform)} may count, {most} are to"
                        )
            case GroupsClosed() if message.batch in self._races:
                yield from self._closed(message, self._races[message.batch])
            case GroupsKept() if message.batch in self._races:
                yield from self._kept(message, self._races[message.batch])
            case GroupsDropped() if message.batch in self._races:
                yield from self._dropped(message, self._races[message.batch])

    def _closed(self, event: GroupsClosed, race: _Race) -> Iterator[str]:
        for group, samples in zip(event.groups, event.samples, strict=True):
            lengths = self._lengths(event.batch, group)
            due = sorted(sorted(lengths, key=lambda one: (lengths[one], one))[: race.counted])
            if race.by_tokens and sorted(samples) != due:
                yield (
                    f"samples {list(samples)} of group {group} of {event.batch} count, the shortest of "
                    f"{lengths} are {due}"
                )

    def _kept(self, event: GroupsKept, race: _Race) -> Iterator[str]:
        for group in event.groups:
            race.kept.add(group)
            ahead = self._ahead(event.batch, group, race)
            if race.by_tokens and len(ahead) >= race.wanted:
                yield f"group {group} of {event.batch} counts, and groups {ahead} are shorter"
            if race.droppable:
                yield from self._kept_uniform(event.batch, group, race)
        if len(race.kept) > race.wanted:
            yield f"{len(race.kept)} groups of {event.batch} count, {race.wanted} are wanted"

    def _kept_uniform(self, batch: str, group: int, race: _Race) -> Iterator[str]:
        """What is wrong with a group that counts where uniform ones are dropped."""
        scores = self._scores(batch, group)
        if scores is None:
            yield f"group {group} of {batch} counts, and not all of its samples have their verdicts"
        elif uniform(scores):
            before = [one for one in range(group) if one in race.uniform or self._is_uniform(batch, one)]
            if len(before) < race.droppable:
                yield (
                    f"group {group} of {batch} counts, its scores are equal ({scores}), and {len(before)} "
                    f"groups before it had equal ones, {race.droppable} are dropped"
                )

    def _is_uniform(self, batch: str, group: int) -> bool:
        scores = self._scores(batch, group)
        return scores is not None and uniform(scores)

    def _scores(self, batch: str, group: int) -> list[float | None] | None:
        """The true scores of the samples of a group that count; None while one has no verdict."""
        requests = self._shadow.group(batch, group)
        if not requests or not all(one.judged for one in requests):
            return None
        return [score_of(self._truth, one) for one in requests]

    def _dropped(self, event: GroupsDropped, race: _Race) -> Iterator[str]:
        for group in event.groups:
            if event.why != "surplus":
                race.uniform.add(group)
                scores = self._scores(event.batch, group)
                if scores is None or not uniform(scores):
                    yield f"group {group} of {event.batch} was dropped as uniform, its scores are {scores}"
            elif race.by_tokens and len(self._ahead(event.batch, group, race)) < race.wanted:
                yield f"group {group} of {event.batch} is surplus, and fewer than {race.wanted} are shorter"
            elif not race.by_tokens and len(race.kept) < race.wanted:
                yield f"group {group} of {event.batch} is surplus, and {len(race.kept)} count so far"

    def _ahead(self, batch: str, group: int, race: _Race) -> list[int]:
        """The groups before this one in the order of the race, but for those that were dropped as uniform."""
        own = self._key(batch, group, race)
        others = (one for one in range(race.total) if one not in race.uniform)
        return [one for one in others if self._key(batch, one, race) < own]

    def _key(self, batch: str, group: int, race: _Race) -> tuple[int, int]:
        if group not in race.keys:
            lengths = sorted(self._lengths(batch, group).values())
            race.keys[group] = lengths[race.counted - 1], group
        return race.keys[group]

    def _lengths(self, batch: str, group: int) -> dict[int, int]:
        """The true length of each sample of a group, by its first response."""
        first = self._shadow.first_responses(batch, group)
        return {sample_of(one.id): self._truth.length(one) for one in first}
