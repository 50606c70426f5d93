"""Stages of reward items: in their order, each with what the stage before made of this very response.

Owns the response of each item, from the message that requests its score, and the program that the modelled
compiler makes of it. Items of the proxy's own workers are sent by no message.
"""

from collections.abc import Iterable, Iterator

from gleaner.actors.protocol.reward import BatchEnded, ItemToScore, Score, ScoreItems
from gleaner.actors.reward import pipe
from gleaner.actors.reward.carried import BadCarried, Carried, digest_of, unpacked
from gleaner.actors.reward.stages import COMPILE, JUDGE, RUN
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Fact, MessagePassed
from gleaner.sim.models.scorer import program_of


class RewardStages(Check):
    """See `promise`."""

    fact_kinds = (MessagePassed,)
    message_kinds = (BatchEnded, Score, ScoreItems)
    name = "reward stages"
    promise = (
        "an item reaches a stage with what the stage before made of its own response: a run has its program, "
        "a judge its score"
    )
    meaning = "If this fails, a response is scored by the program of another one, or by a part of its stages."

    def __init__(self) -> None:
        self._programs: dict[str, tuple[str, str]] = {}  # batch, digest of its program, by request

    def see(self, fact: Fact) -> Iterable[str]:
        if not isinstance(fact, MessagePassed):
            return
        match fact.message:
            case Score() as asked if fact.direction == "out":
                item = pipe.score_item(asked.split, asked.index, asked.tokens)
                self._programs[asked.request] = asked.batch, digest_of(program_of(item))
            case BatchEnded(batch=batch) if fact.direction == "in":
                self._programs = {name: one for name, one in self._programs.items() if one[0] != batch}
            case ScoreItems(items=items) if fact.direction == "out":
                for given in items:
                    yield from self._given(fact.to, given)

    def _given(self, host: str, item: ItemToScore) -> Iterator[str]:
        if item.stage not in (COMPILE, RUN, JUDGE):
            return
        try:
            carried = unpacked(item.carried) if item.carried else Carried()
        except BadCarried as problem:
            yield f"{host} gets {item.id} in stage {item.stage}: {problem}"
            return
        _, program = self._programs.get(item.id, ("", ""))
        if item.stage == COMPILE and item.carried:
            yield f"{host} gets {item.id} to compile with what a stage left"
        elif item.stage == RUN and program and carried.digest != program:
            found = carried.digest or "none"
            yield f"{host} gets {item.id} to run with program {found}, its own is {program}"
        elif item.stage == JUDGE and carried.own is None:
            yield f"{host} gets {item.id} to judge, which has no score yet"
