"""Group selection: which groups of a step count, and the reason of each refill.

Owns the fates of the groups of open batches by the journal, and their comparison with the true scores.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.actors.protocol.rollout import GroupOut, Groups
from gleaner.actors.rollout.state.events import BatchReleased, GroupsAdded, GroupsDropped, GroupsKept
from gleaner.chaos.invariants.check import Check, some
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed
from gleaner.chaos.invariants.shadow import Shadow
from gleaner.chaos.invariants.truth import Truth, score_of
from gleaner.rlctl.audit.invariants import step_of


@dataclass(slots=True)
class _Fates:
    """Groups of one batch. total: all of them, refills included."""

    total: int
    kept: set[int] = field(default_factory=set)
    uniform: set[int] = field(default_factory=set)
    surplus: set[int] = field(default_factory=set)


class SelectedByScores(Check):
    """See the module."""

    fact_kinds, message_kinds = (Committed, MessagePassed), (Groups,)
    committed_kinds = (BatchSubmitted, BatchReleased, GroupsKept, GroupsDropped, GroupsAdded)
    name = "selection"
    promise = (
        "a group counts if its scores differ, or if too many groups before it had equal ones; a surplus "
        "group is dropped when the step is full, a prompt is added only in the place of a dropped group"
    )
    meaning = (
        "If this fails, a step is trained on groups without a gradient, good groups are thrown away, or "
        "hosts are paid for responses that no step wants."
    )

    def __init__(self, shadow: Shadow, truth: Truth) -> None:
        self._shadow, self._truth, self._wanted = shadow, truth, truth.wanted
        self._fates: dict[str, _Fates] = {}  # of open batches that select

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, Committed) and fact.stream == MANAGER and not fact.snapshot:
            for message in fact.messages:
                yield from some(self._journaled(message))
        elif isinstance(fact, MessagePassed) and fact.direction == "out" and isinstance(fact.message, Groups):
            yield from some(self._handed_out(fact.message.groups))

    def _journaled(self, message: object) -> Iterator[str]:
        match message:
            case BatchSubmitted():
                selects = self._wanted.selects and not message.race  # of races see `races`
                if selects and step_of(message.batch) is not None:
                    self._fates.setdefault(message.batch, _Fates(len(message.prompts)))
            case BatchReleased():
                self._fates.pop(message.batch, None)
            case GroupsKept():
                yield from self._kept(message)
            case GroupsDropped():
                yield from self._dropped(message)
            case GroupsAdded():
                yield from self._added(message)

    def _kept(self, event: GroupsKept) -> Iterator[str]:
        fates = self._fates.get(event.batch)
        for group in event.groups if fates is not None else ():
            assert fates is not None
            fates.kept.add(group)
            what = f"group {group} of {event.batch} counts"
            scores = self._scores(event.batch, group)
            if scores is None:
                yield f"{what}, and not all of its samples have their verdicts"
            elif uniform(scores) and self._wanted.drop_uniform:
                before = [one for one in range(group) if self._is_uniform(event.batch, one, fates)]
                if len(before) < self._wanted.droppable:
                    yield (
                        f"{what}, its scores are equal ({scores}), and {len(before)} groups before it had "
                        f"equal ones, {self._wanted.droppable} are dropped"
                    )
        if fates is not None and len(fates.kept) > self._wanted.prompts:
            yield f"{len(fates.kept)} groups of {event.batch} count, {self._wanted.prompts} are wanted"

    def _is_uniform(self, batch: str, group: int, fates: _Fates) -> bool:
        if group in fates.uniform:
            return True
        scores = None if group in fates.surplus else self._scores(batch, group)
        return scores is not None and uniform(scores)

    def _dropped(self, event: GroupsDropped) -> Iterator[str]:
        fates = self._fates.get(event.batch)
        if fates is None:
            return
        if event.why == "surplus":
            fates.surplus.update(event.groups)
            if len(fates.kept) < self._wanted.prompts:
                yield (
                    f"groups {list(event.groups)} of {event.batch} were dropped as surplus, "
                    f"{len(fates.kept)} count and {self._wanted.prompts} are wanted"
                )
            return
        fates.uniform.update(event.groups)
        for group in event.groups:
            scores = self._scores(event.batch, group)
            if scores is None or not uniform(scores):
                yield f"group {group} of {event.batch} was dropped as uniform, its scores are {scores}"
        if len(fates.uniform) > self._wanted.droppable:
            yield (
                f"{len(fates.uniform)} groups of {event.batch} were dropped as uniform, "
                f"{self._wanted.droppable} may be"
            )

    def _added(self, event: GroupsAdded) -> Iterator[str]:
        fates = self._fates.get(event.batch)
        if fates is None or event.first != fates.total:
            return  # refused, as I1 sees
        fates.total += len(event.prompts)
        live = fates.total - len(fates.uniform)
        if live > self._wanted.launched:
            yield (
                f"{len(event.prompts)} prompts were added to {event.batch}: {live} of its groups may count, "
                f"it begins with {self._wanted.launched}"
            )

    def _handed_out(self, groups: Sequence[GroupOut]) -> Iterator[str]:
        for group in groups:
            batch = group.samples[0].request.partition("/")[0] if group.samples else ""
            fates = self._fates.get(batch)
            if fates is not None and group.group not in fates.kept:
                yield f"group {group.group} of {batch} was handed out, and it does not count yet"

    def _scores(self, batch: str, group: int) -> list[float | None] | None:
        """The true scores of a group; None while a sample of it has no verdict."""
        requests = self._shadow.group(batch, group)
        if not requests or not all(one.judged for one in requests):
            return None
        return [score_of(self._truth, one) for one in requests]


def uniform(scores: Sequence[float | None]) -> bool:
    """Whether a group has no gradient: fewer than two scores, or all of them equal."""
    return len({score for score in scores if score is not None}) < 2
