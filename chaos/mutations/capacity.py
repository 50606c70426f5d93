"""Planted bugs in capacity, plans, money and deadlines: nothing is lost, and it costs time or hosts.

They are in `gleaner.actors` and `gleaner.transport`, each in the words of one line.
"""

from collections.abc import Iterator

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation

POWER = ("kill_host", "kill_zone")
RESTARTS = ("kill_host",)
GOING = ("crash_actor", "kill_host", "kill_zone", "notice")
SPARED = ("false_notice",)
SILENCES = ("reset",)
LIVES = ("kill_process", "crash_actor", "partition", "reset", "freeze", "zombie")
DRAINS = ("notice", "false_notice")
LEADS = {
    "a lost dispatch is never taken back": "dispatches that never leave",
    "a spared host that is reported once": "a spared host without its head",
    "the last credit does not count": "a manager that is silent",
    "one frame beyond the credit": "a manager that is silent",
}
CAPACITY_CHECKS = ("no capacity forgotten", "work conservation", "instances", "recovery time")
"""Checks of what hosts do; which of them notices first depends on the seed."""


def _mutations() -> Iterator[Mutation]:
    for name, safeguard, caught_by, faults, module, old, new in PLANTED:
        edit = Edit(f"gleaner.{module}", old, new)
        yield Mutation(name, safeguard, (edit,), caught_by, faults, LEADS.get(name, ""), campaign="ci")


PLANTED: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], str, str, str], ...] = (
    (
        "a plan that a restart forgets",
        "T_seed and N_prem outlive the scheduler",
        ("plans survive",),
        RESTARTS,
        "actors.cluster.scheduler",
        "                self._now = event\n",
        "                self._now = structs.replace(event, seeding=None)\n",
    ),
    (
        "a model that a restart forgets",
        "what the scheduler has learnt of the steps outlives it",
        ("plans survive",),
        RESTARTS,
        "actors.cluster.scheduler",
        "                self._now = event\n",
        "                self._now = structs.replace(\n"
        "                    event, seeding=event.seeding and structs.replace(event.seeding, learnt=None)\n"
        "                )\n",
    ),
    (
        "a plan before its commit",
        "a plan is in the journal before it is answered",
        ("plans survive",),
        RESTARTS,
        "actors.cluster.scheduler",
        "            await self._become(state)\n            if planned_step",
        "            self.ctx.background(self._become(state), 'plan')\n            if planned_step",
    ),
    (
        "work for a host before its commit",
        "a host is a member in the journal before it gets work",
        ("answers",),
        RESTARTS,
        "actors.cluster.scheduler",
        "        self._membership.changed(events, lambda: deferred.answer(self._work_of(message)))\n",
        "        self._membership.changed(events)\n        deferred.answer(self._work_of(message))\n",
    ),
    (
        "a registration before its commit",
        "an instance has joined in the journal before it is registered",
        ("answers", "I4", *CAPACITY_CHECKS),
        LIVES,
        "actors.rollout.fleet.membership",
        "joined = await self._journaled.record(",
        "(joined,), _ = self._journaled.enter(",
    ),
    (
        "a wish that a restart forgets",
        "N_prem outlives the provider",
        ("fleet size",),
        GOING,
        "actors.cluster.provider",
        "        self._job, self._trace_s, self._n_prem = state.job, state.trace_s, state.n_prem\n",
        "        self._job, self._trace_s, self._n_prem = state.job, state.trace_s, None\n",
    ),
    (
        "as many hosts as there are",
        "no more hosts are rented than the plan wishes for",
        ("fleet size",),
        GOING,
        "actors.cluster.fleet",
        "            if len(self._running) >= min(self.n_prem, self._n_prem_max):\n",
        "            if len(self._running) >= self._n_prem_max:\n",
    ),
    (
        "hosts without a job",
        "the hosts of a job are stopped with it",
        ("fleet size",),
        (),
        "actors.cluster.provider",
        '            self.ctx.background(self._hosts.stop(), "stop of the hosts")\n',
        "            self._hosts.take_ended()\n",
    ),
    (
        "an end that the provider never gets",
        "the end of a job stops its fleet",
        ("fleet size",),
        (),
        "actors.cluster.scheduler",
        "        self._orders.stop()\n",
        "",
    ),
    (
        "a host that left is paid for",
        "a host is paid for until it leaves",
        ("fleet size",),
        GOING,
        "actors.training.account",
        '        elif host is not None and record.event in ("killed", "left"):\n',
        '        elif host is not None and record.event == "left":\n',
    ),
    (
        "a notice without an end",
        "a host whose notice was taken back gets requests again",
        CAPACITY_CHECKS,
        SPARED,
        "actors.rollout.fleet.membership",
        "        instance.leaving = instance.spared = False\n        self._asked",
        "        instance.spared = False\n        self._asked",
    ),
    (
        "a hint without an end",
        "what a spared instance serves is reported again",
        CAPACITY_CHECKS,
        SPARED,
        "actors.rollout.fleet.membership",
        "            await self._ctx.tell(BALANCER, self._quarantine.report(instance))\n",
        "            self._ctx.log.info('it serves again: %s', instance.name)\n",
    ),
    (
        "a suspicion without an end",
        "an instance that answers again gets requests again",
        CAPACITY_CHECKS,
        SILENCES,
        "actors.rollout.dispatch.load_balancer",
        "message.incarnation, message.suspected)",
        "message.incarnation, True)",
    ),
    (
        "news of suspicions alone",
        "the end of a suspicion is reported",
        CAPACITY_CHECKS,
        SILENCES,
        "actors.rollout.fleet.membership",
        "        if instance is not None and instance.incarnation == event.incarnation:\n"
        "            await self._ctx.tell(BALANCER, instance.suspected(event.suspected))\n",
        "        if instance is not None and event.suspected:\n"
        "            await self._ctx.tell(BALANCER, instance.suspected(event.suspected))\n",
    ),
    (
        "a deadline from each move",
        "the deadline of a request runs from its first dispatch",
        ("request age",),
        (),
        "actors.rollout.requests.deadlines",
        "                    self._until_s.setdefault(log.id, until_s)\n",
        "                    self._until_s[log.id] = until_s\n",
    ),
    (
        "a deadline for what waits",
        "a request that is decoded has a deadline too",
        ("request age",),
        (),
        "actors.rollout.requests.deadlines",
        "            elif now >= until_s and not request.due:\n",
        "            elif now >= until_s and not request.due and request.state is RequestState.QUEUED:\n",
    ),
    (
        "a window that is never opened",
        "a step seeds as long as it was planned",
        ("planned window",),
        (),
        "actors.training.trainer",
        "            return Spent(), await self._seed(order, coming, window_s)\n",
        "            return Spent(), await self._seed(order, coming, 0.0)\n",
    ),
    (
        "a window that is closed at once",
        "a window stays open as long as it was planned",
        ("planned window",),
        (),
        "actors.training.trainer",
        "                reply = await self._take(order, have, left, window_s)\n",
        "                reply = await self._take(order, have, left, 0.0)\n",
    ),
    (
        "an older end drops a living host",
        "the end of an earlier node agent does not concern the present one",
        ("membership",),
        POWER,
        "actors.cluster.membership",
        "            if member.agent.name == agent and member.agent.incarnation == incarnation:\n",
        "            if member.agent.name == agent:\n",
    ),
    (
        "an end counts for the newest life of its host",
        "the scheduler looks an end up by its incarnation",
        ("membership",),
        POWER,
        "actors.cluster.scheduler",
        "        self._membership.changed(self._members.ended(event.name, event.incarnation, event.cause))\n",
        "        member = self._members.by_name.get(event.name.partition('/')[0])\n"
        "        incarnation = member.agent.incarnation if member is not None else 0\n"
        "        self._membership.changed(self._members.ended(event.name, incarnation, event.cause))\n",
    ),
    (
        "news of hosts under one key",
        "each event of a host reaches the controller",
        ("membership", "fleet size"),
        GOING,
        "actors.cluster.host_events",
        "            self._accepted += 1\n",
        "",
    ),
    (
        "news of a host once",
        "a host that ends twice is recorded twice",
        ("membership", "fleet size"),
        GOING,
        "actors.cluster.host_events",
        '        key = f"{self._ctx.name}/{self._ctx.incarnation}/{self._accepted}"\n',
        '        key = f"{event.node}/{event.event}"\n',
    ),
    (
        "a serving instance wakes no queue",
        "an instance that serves is looked at by what waits",
        CAPACITY_CHECKS,
        (),
        "actors.rollout.fleet.membership",
        "        self._step_metrics.serves(instance.name)\n"
        "        self._step_metrics.there()\n"
        "        self._dispatcher.wake()\n",
        "        self._step_metrics.serves(instance.name)\n        self._step_metrics.there()\n",
    ),
    (
        "free slots wake no queue",
        "what ends makes room, and the queue is looked at",
        CAPACITY_CHECKS,
        (),
        "actors.rollout.dispatch.dispatcher",
        '        """Requests wait, or an instance has free capacity."""\n        self._changed.set()\n',
        '        """Requests wait, or an instance has free capacity."""\n'
        "        if not self._load:\n            self._changed.set()\n",
    ),
    (
        "a lost dispatch is never taken back",
        "a dispatch that an instance never got is taken back",
        CAPACITY_CHECKS,
        (),
        "actors.rollout.fleet.membership",
        "        if lost:\n",
        '        if lost and message.kind == "reserved":\n',
    ),
    (
        "a refused dispatch is never taken back",
        "a dispatch that an instance refused is taken back",
        CAPACITY_CHECKS,
        LIVES,
        "actors.rollout.fleet.membership",
        "        self._act(await self._journaled.record(revoked))\n",
        "        self._ctx.log.info('refused: %d', len(revoked.tickets))\n",
    ),
    (
        "the last credit does not count",
        "a sender may use its whole credit",
        ("stream credit", *CAPACITY_CHECKS),
        (),
        "transport.token_ring",
        "        if seq > self.acked + window:\n",
        "        if seq >= self.acked + window:\n",
    ),
    (
        "one frame beyond the credit",
        "a sender sends no frame beyond its credit",
        ("stream credit",),
        (),
        "transport.token_ring",
        "min(self.last_seq, self.acked + self.window)",
        "min(self.last_seq, self.acked + self.window + 1)",
    ),
    (
        "a withdrawal without an answer",
        "a withdrawal is answered when its instance holds nothing",
        ("drains end",),
        DRAINS,
        "actors.rollout.fleet.drain",
        "            if stream is None or stream.gone or not stream.held:\n",
        "            if stream is None or stream.gone:\n",
    ),
    (
        "a withdrawal that is over at once",
        "a withdrawal is answered only when its instance holds nothing",
        ("drains end",),
        (),
        "actors.rollout.fleet.drain",
        "            if stream is None or stream.gone or not stream.held:\n",
        "            if withdrawal is not None:\n",
    ),
    (
        "a spared host that is reported once",
        "a host repeats to its transfer agent that its notice was withdrawn",
        CAPACITY_CHECKS,
        (),
        "nodeagent.agent",
        "                await self.ctx.ask(\n"
        '                    f"{self.ctx.node}/transfer", message, deadline_s=ASK_DEADLINE_S, expect=Done\n'
        "                )\n",
        '                await self.ctx.tell(f"{self.ctx.node}/transfer", message)\n',
    ),
)

CAPACITY: tuple[Mutation, ...] = tuple(_mutations())
