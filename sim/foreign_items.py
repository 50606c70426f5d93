"""ForeignItems: results that a reward host sends for items of another one.

Owns which items those are, and what is sent: a score that no modelled verifier gives, under the host's own
offer. So a result that counts is found by the checks of verdicts.
"""

from __future__ import annotations

from collections.abc import Iterator

from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import ItemResult, ItemsScored, ScoreItems
from gleaner.actors.reward.verdicts import OK
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.supervisor import ActorSystem, AskFailed, Context, Done

FALSE_SCORE = 0.25
ASK_S = 5.0


class ForeignItems:
    """See the module.

    Args:
        host: the reward host that answers, by the name of its actor.
        count: items that it answers; `left` of them are to come.
    """

    def __init__(self, host: str, count: int) -> None:
        self.left = count
        self._host = host
        self._epoch = ""  # of its newest offer

    def results(self, seen: ObservedMessage) -> Iterator[ItemsScored]:
        """The results to send now: the proxy gives this item to another host."""
        message = seen.message
        if not isinstance(message, ScoreItems) or seen.direction != "out" or seen.source != REWARD:
            return
        if seen.to == self._host:
            self._epoch = message.epoch
        elif self._epoch and self.left and message.items:
            self.left -= 1
            item = message.items[0]
            result = ItemResult(
                id=item.id, attempt=item.attempt, stage=item.stage, score=FALSE_SCORE, status=OK, took_s=0.0
            )
            yield ItemsScored(host=self._host, epoch=self._epoch, results=[result])


def send_results(system: ActorSystem, results: ItemsScored) -> None:
    """Send them, in a turn of the host's process, if its actor lives."""
    cell = system.cell(results.host)
    if cell is not None:
        cell.ctx.background(_send(cell.ctx, results), "results of others")


async def _send(ctx: Context, results: ItemsScored) -> None:
    try:
        await ctx.ask(REWARD, results, deadline_s=ASK_S, expect=Done)
    except AskFailed as problem:  # another life of the proxy, or none
        ctx.log.info("results of others were not received: %s", problem)
