"""Planted bugs of reward hosts, in `gleaner.actors.reward`."""

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation

DISPATCH = "gleaner.actors.reward.item_dispatch"
SETTLEMENT = "gleaner.actors.reward.settlement"
HOSTS = "gleaner.actors.reward.assignment.hosts"
SERVICE = "gleaner.actors.reward_service.service"
PASSED = "gleaner.actors.reward.assignment.passed_stages"


def _bug(
    name: str,
    safeguard: str,
    edit: Edit,
    caught_by: tuple[str, ...],
    faults: tuple[str, ...] = (),
    lead: str = "",
    campaign: str = "rewards",
) -> Mutation:
    return Mutation(name, safeguard, (edit,), caught_by, faults, lead=lead, campaign=campaign)


REWARDS: tuple[Mutation, ...] = (
    _bug(
        "items of a lost reward host not requeued",
        "the items of a reward host that is gone wait again",
        Edit(
            DISPATCH, "        lost = self.items.running_on(name)\n", "        lost: list[RewardItem] = []\n"
        ),
        ("verdict age",),  # which waits longer than the other two, so that no other bug shows it awake
        lead="reward hosts that stay away",
    ),
    _bug(
        "a reward host that drains gets items",
        "a reward host with a notice gets no new items",
        Edit(HOSTS, "        if self.barred:\n", "        if False:\n"),
        ("reward hosts",),
        ("notice", "false_notice"),
    ),
    _bug(
        "credit of a reward host not counted",
        "a reward host has no more items than its workers take",
        Edit(HOSTS, " * ahead - self.has.get(stage, 0))", " * ahead)"),
        ("reward hosts",),
    ),
    _bug(
        "result counted for another item",
        "each result of a reward host is that of its own item",
        Edit(
            "gleaner.actors.reward.host_offers",
            "message.host, result.id, result.stage",
            "message.host, message.results[0].id, result.stage",
        ),
        ("verdicts", "verdict age", "recovery time", "I8"),
    ),
    _bug(
        "the result of a reward host that does not have the item counts",
        "a reward host settles only what it was given, or has announced",
        Edit(DISPATCH, "        if not self.items.gave(item_id, host, attempt):\n", "        if False:\n"),
        ("verdicts",),
        ("foreign_result",),
    ),
    _bug(
        "the score of a reward host is 0",
        "a reward host sends the score that its worker computed",
        Edit("gleaner.actors.reward.host", "            score=verdict.score,\n", "            score=0.0,\n"),
        ("verdicts",),
    ),
    _bug(
        "the next attempt of an item counts as sent twice",
        "a reward host scores an item again whose result it has just sent",
        Edit(
            "gleaner.actors.reward.host",
            "            if item.attempt <= self._attempts.get(item.id, -1):\n",
            "            if item.id in self._attempts:\n",
        ),
        ("verdict age", "recovery time", "I8"),
        ("sick_verifier", "hang", "kill_process"),
    ),
    _bug(
        "a cancelled item is scored",
        "an item whose group was dropped waits for no worker",
        Edit(DISPATCH, "        dropped = self.items.drop(ids)\n", "        dropped = self.items.drop([])\n"),
        ("reward hosts",),
        campaign="hunt-cancelled",
    ),
    _bug(
        "a stage gets nothing of the one before",
        "a program that was compiled is what the next stage runs",
        Edit(
            PASSED,
            "        item.carried, item.made_on = self.carried, self.host\n",
            "        item.made_on = self.host\n",
        ),
        ("reward stages",),
        campaign="pipelines",
    ),
    _bug(
        "an item skips a stage",
        "an item passes its stages in their order",
        Edit(PASSED, "        return known[at]\n", "        return known[-1]\n"),
        ("reward stages",),
        campaign="pipelines",
    ),
    _bug(
        "what a lost host made is never made again",
        "an item whose program is gone with its host is compiled again",
        Edit(
            SETTLEMENT,
            "        self._hosts.release(host, item.stage)\n        self.passed.drop(item.id)\n",
            "        return\n",
        ),
        ("verdict age", "recovery time", "I8"),
        lead="reward hosts that stay away",
        campaign="pipelines",
    ),
    _bug(
        "a shared service gives the verdict of another item",
        "each item of a shared reward service has a name of its own",
        Edit(SERVICE, "{self.ctx.incarnation}-{self._asked}", "{self.ctx.incarnation}-{self._asked // 2}"),
        ("verdicts",),
        campaign="hunt-shared",
    ),
    _bug(
        "a shared service that fails scores 1",
        "a failure of a shared reward service is no score",
        Edit(
            SERVICE,
            '        raise Outage(f"{verdict.status}: {verdict.detail}"',
            '        return Scored(1.0)\n        raise Outage(f"{verdict.status}: {verdict.detail}"',
        ),
        ("verdicts",),
        ("bad_scorer", "sick_verifier"),
        campaign="hunt-shared",
    ),
    _bug(
        "a lost call of a shared service never made again",
        "a call that fails is made again while its deadline lasts",
        Edit(
            "gleaner.actors.reward.verifiers.service_verifier",
            "            await asyncio.sleep(max(problem.after_s, wait_s * (1 + rng.random())))\n",
            "            await asyncio.sleep(86_400.0)\n",
        ),
        ("shared service", "verdict age", "I8"),
        ("crash_actor", "reset"),
        campaign="hunt-shared",
    ),
    _bug(
        "a cancelled call stays in the service's queue",
        "the item of a call whose client has left leaves the queue of the service",
        Edit(SERVICE, "                self._send(CancelScores(requests=[message.request]))\n", ""),
        ("shared service",),
        campaign="hunt-shared",
    ),
    _bug(
        "a dropped item keeps its call",
        "the call of an item whose group was dropped ends",
        Edit(
            "gleaner.actors.reward.local_workers",
            "                task.cancel()\n",
            "                pass\n",
        ),
        ("shared service",),
        campaign="hunt-shared",
    ),
)
