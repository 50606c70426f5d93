"""Planted bugs in the rollout's state of requests, tokens and rewards.

They are in `gleaner.actors.rollout` and `gleaner.actors.engine`.
"""

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation

ROLLOUT: tuple[Mutation, ...] = (
    Mutation(
        "acknowledge before commit",
        "a frame is acknowledged only after the journal has it",
        (
            Edit(
                "gleaner.actors.rollout.journal.frame_intake",
                "                await committed\n                self._token_followers.committed(marks)\n",
                "                self._token_followers.committed(marks)\n",
            ),
        ),
        ("I2",),
    ),
    Mutation(
        "off by one in the resumed prefix",
        "a resumed request continues from exactly its last collected token",
        (
            Edit(
                "gleaner.actors.rollout.dispatch.dispatcher",
                "prefix=log.tokens_bytes(),",
                "prefix=log.tokens_bytes()[:-4],",
            ),
        ),
        ("I1", "I2"),
    ),
    Mutation(
        "dispatch without the prefix",
        "collected tokens are not generated again",
        (Edit("gleaner.actors.rollout.dispatch.dispatcher", "prefix=log.tokens_bytes(),", 'prefix=b"",'),),
        ("I1", "I2"),
    ),
    Mutation(
        "no fencing of streams",
        "frames of an incarnation that was given up are refused",
        (
            Edit(
                "gleaner.actors.rollout.state.tickets",
                "return None if stream is None or stream.gone or stream.incarnation != incarnation else "
                "stream",
                "return stream",
            ),
        ),
        ("I1", "I2", "I4"),
        lead="instances that are given up, and live",
    ),
    Mutation(
        "ticket not superseded",
        "the ticket of a request that was taken back from an instance is superseded",
        (
            Edit(
                "gleaner.actors.rollout.state.tickets",
                "        self.tickets[ticket] = msgspec.structs.replace(self.tickets[ticket], "
                "superseded=True)\n"
                "        self.held -= 1\n",
                "",
            ),
        ),
        ("I1", "I2", "work conservation"),
        lead="dispatches that never leave",
    ),
    Mutation(
        "deliver without storing",
        "a delivered group is stored before its tokens leave memory, for a trainer that requests it again",
        (
            Edit(
                "gleaner.actors.rollout.journal.journaled_state",
                "[self.shelves.put(event.batch, groups)] if groups else []",
                "list[Awaitable[int]]()",
            ),
        ),
        ("I1", "I8"),
        lead="a trainer that starts again",
    ),
    Mutation(
        "deliver a group twice",
        "a group is delivered once, however often the trainer asks",
        (
            Edit(
                "gleaner.actors.rollout.batches.group_delivery",
                "            ready = batch.due_but(have)",
                "            ready = batch.due_but(set())",
            ),
        ),
        ("I1", "I8", "updates"),
    ),
    Mutation(
        "deliver an incomplete group",
        "a group is delivered only when all its samples are scored",
        (
            Edit(
                "gleaner.actors.rollout.state.token_log",
                "                if not log.status:  # as `complete`\n",
                "                if not any(it.status for it in logs):\n",
            ),
        ),
        ("I1", "I7"),
    ),
    Mutation(
        "serve any version",
        "a request is dispatched only to an instance that proved its version, and no other one accepts it",
        (
            Edit(
                "gleaner.actors.rollout.dispatch.placement",
                "            and roots.get(self.version) == self.root\n",
                "",
            ),
            Edit(
                "gleaner.actors.rollout.dispatch.dispatcher",
                "            if instance is not None and version is not None and roots.get(version) == "
                "instance.root:\n",
                "            version = next(iter(roots))\n            if instance is not None:\n",
            ),
            Edit(
                "gleaner.actors.engine.worker.worker",
                "self._commands.adds.append((message.version, message.work))",
                "self._commands.adds.append((self._weights.served[0] or 0, message.work))",
            ),
        ),
        ("I1", "I3"),
    ),
    Mutation(
        "migration loses its request",
        "a migrated request waits like any other, and its migration order expires",
        (
            Edit(
                "gleaner.actors.rollout.dispatch.dispatcher",
                "        targets = tuple(self._migration.moved_to(one) for one in moved)\n",
                "        targets = ()\n",
            ),
            Edit(
                "gleaner.actors.rollout.dispatch.dispatcher",
                "zip([*moved, *others], placed.instances, strict=False)",
                "zip(others, placed.instances, strict=False)",
            ),
            Edit(
                "gleaner.actors.rollout.dispatch.migration",
                "            if name not in requests or now > order.until_s:\n",
                "            if name not in requests:\n",
            ),
        ),
        ("I8", "no silent wait", "work conservation"),
    ),
    Mutation(
        "last verdict wins",
        "a reward counts once: a judged sample is not scored again, and a second verdict changes nothing",
        (
            Edit(
                "gleaner.actors.rollout.state.state",
                '        elif log.judged:\n            changes.refused.append("scored_twice")\n',
                "",
            ),
            Edit(
                "gleaner.actors.rollout.batches.scoring",
                "            if log is not None and not log.judged and ",
                "            if log is not None and ",
            ),
            Edit(
                "gleaner.actors.rollout.batches.scoring",
                "        if not self._wanted(log):\n            return\n",
                "        if log.score is not None:\n"
                "            await self._on_scored(Scored(request=log.id, score=1.0 - log.score))\n"
                "            return\n",
            ),
            Edit(
                "gleaner.actors.rollout.state.token_log",
                "            and not log.judged\n",
                "",
            ),
        ),
        ("I7",),
        lead="other verdicts after a restart",
    ),
    Mutation(
        "score a verifier failure as wrong",
        "a sample whose verifier failed has no score",
        (
            Edit(
                "gleaner.actors.rollout.batches.scoring",
                "        return Scored(request=log.id, score=None, ",
                "        return Scored(request=log.id, score=0.0, ",
            ),
        ),
        ("I7",),
        lead="a verifier that fails",
    ),
    Mutation(
        "never give up an instance",
        "requests of a silent or dead instance are requeued",
        (
            Edit(
                "gleaner.actors.rollout.fleet.membership",
                "        if event.name not in self._instances:  # otherwise it is back already\n"
                "            await self.lose(event.name, event.incarnation, event.cause)\n",
                "",
            ),
            Edit(
                "gleaner.actors.rollout.fleet.membership",
                "if silent_s > self._settings.rollout.deadline_s and stream.held:",
                "if False:",
            ),
        ),
        ("I8", "no silent wait"),
        lead="instances that are gone",
    ),
    Mutation(
        "replay without token frames",
        "a restarted manager has everything that was committed",
        (
            Edit(
                "gleaner.actors.rollout.journal.journaled_state",
                "            else:\n                self.state.apply(event)\n",
                '            elif type(event).__name__ != "FrameLogged":\n'
                "                self.state.apply(event)\n",
            ),
        ),
        ("I1", "I2"),
        ("kill_process", "kill_in_commit", "kill_on_message"),
    ),
    Mutation(
        "refill does not advance the cursor",
        "the problems of a refill are drawn once, like all others",
        (
            Edit(
                "gleaner.actors.training.problem_order",
                "        self._cursor = event.cursor\n",
                "        self._cursor = event.cursor if not event.first else self._cursor\n",
            ),
        ),
        ("I1", "draws"),
        campaign="hunt-sampling",
    ),
    Mutation(
        "abort a kept group",
        "a kept group is never aborted: neither by the policy nor by the state",
        (
            Edit(
                "gleaner.actors.rollout.state.group_policy",
                "standing in (Standing.OPEN, Standing.UNIFORM, Standing.VARIED)",
                "standing not in (Standing.DROPPED, Standing.ABORTED)",
            ),
            Edit(
                "gleaner.actors.rollout.state.group_events",
                "        elif group in batch.fates.kept or group in batch.fates.dropped:\n",
                "        elif group in batch.fates.dropped:\n",
            ),
        ),
        ("I1", "I2", "I8"),
        campaign="hunt-sampling",
    ),
    Mutation(
        "kept request has the old version",
        "tokens of a kept request after a weight update carry the newer version",
        (
            Edit(
                "gleaner.actors.rollout.state.ticket_renewal",
                "        stream.renew(number, request.attempts, event.version)\n",
                "        stream.renew(number, request.attempts, stream.tickets[number].version)\n",
            ),
        ),
        ("I1", "I3"),
        campaign="hunt-kept",
    ),
    Mutation(
        "give up a version at the first failed load",
        "a version is given up only after repeated failed loads by more than one instance",
        (
            Edit(
                "gleaner.actors.rollout.fleet.failed_loads",
                "LOADS, INSTANCES = 3, 2",
                "LOADS, INSTANCES = 1, 1",
            ),
        ),
        ("failed loads",),
        lead="loads that fail",
    ),
    Mutation(
        "dispatch to idle instances only",
        "an instance receives requests while it has free slots",
        (
            Edit(
                "gleaner.actors.rollout.dispatch.placement",
                "        if share is None:\n            return 0\n",
                "        if share is None or instance.executing:\n            return 0\n",
            ),
        ),
        ("work conservation",),
    ),
    Mutation(
        "published balancing without a limit",
        "with Algorithm 2 as printed, requests beyond the backlog of an instance wait in the manager",
        (
            Edit(
                "gleaner.actors.rollout.dispatch.published_balancing",
                "        if one.serves(roots) and one.pending < max_pending  # lines 3-7\n",
                "        if one.serves(roots)\n",
            ),
            Edit(
                "gleaner.actors.rollout.dispatch.published_balancing",
                "        if pending + 1 < max_pending:\n",
                "        if True:\n",
            ),
        ),
        ("work conservation",),
        campaign="hunt-published",
    ),
    Mutation(
        "dispatch without a limit",
        "requests beyond the free slots and a small backlog wait in the manager",
        (
            Edit(
                "gleaner.actors.rollout.dispatch.placement",
                "        return max(0, max(at_once, self._threshold(instance)) - instance.pending)\n",
                "        return 1_000\n",
            ),
        ),
        ("work conservation",),
    ),
)
