"""Planted bugs: each takes one safeguard out of production code, and a campaign must notice.

Owns the list. How a bug is planted is `mutate`; which campaign hunts it, and how long, is `hunt`. An edit is
a piece of the source as it stands; a test fails as soon as one fits no longer, so the list follows the code.
Where two safeguards guard the same thing, both are taken out: one alone would rightly change nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from chaos.mutate import Edit


@dataclass(frozen=True, slots=True)
class Mutation:
    """safeguard: what is taken out, in words. caught_by: the checks that may notice, as it was thought out;
    which one did is measured. faults: kinds that lead there; a hunt has only these on, where any are named.
    """

    name: str
    safeguard: str
    edits: tuple[Edit, ...]
    caught_by: tuple[str, ...]
    faults: tuple[str, ...] = ()


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "acknowledge before commit",
        "an instance is told to forget a frame only when the journal has it",
        (
            Edit(
                "actors.rollout.manager",
                "        await committed\n        self._receiver.acknowledge(",
                "        self._receiver.acknowledge(",
            ),
        ),
        ("I2",),
    ),
    Mutation(
        "off by one at the splice",
        "a request goes on from exactly its last collected token",
        (
            Edit(
                "actors.rollout.dispatching",
                "prefix=log.tokens.tobytes(),",
                "prefix=log.tokens[:-1].tobytes(),",
            ),
        ),
        ("I1", "I2"),
    ),
    Mutation(
        "a dispatch without its prefix",
        "what was collected is not generated again",
        (Edit("actors.rollout.dispatching", "prefix=log.tokens.tobytes(),", 'prefix=b"",'),),
        ("I1", "I2"),
    ),
    Mutation(
        "drop the dedupe of frames",
        "a frame that comes twice counts once: in the receiver, and again in the state",
        (
            Edit(
                "transport.token_ring",
                "        if seq <= self.delivered:\n            return Verdict.DUPLICATE\n",
                "        if seq <= self.delivered:\n            return Verdict.DELIVER\n",
            ),
            Edit(
                "actors.rollout.state",
                "        elif event.seq <= stream.last_seq:\n"
                '            changes.refused.append("duplicate")\n'
                "        elif event.seq != stream.last_seq + 1:\n"
                '            changes.refused.append("gap")\n',
                "",
            ),
        ),
        ("I1", "I2"),
        ("bad_link", "reset", "partition", "freeze"),
    ),
    Mutation(
        "take frames out of order",
        "a gap in a stream is asked for before anything after it counts",
        (
            Edit(
                "transport.token_ring",
                "        if seq == self.delivered + 1:\n            return Verdict.DELIVER\n",
                "        if seq > self.delivered:\n            self.delivered = seq - 1\n"
                "            return Verdict.DELIVER\n",
            ),
            Edit(
                "actors.rollout.state",
                '        elif event.seq != stream.last_seq + 1:\n            changes.refused.append("gap")\n',
                "",
            ),
        ),
        ("I1", "I2"),
        ("bad_link", "reset", "partition"),
    ),
    Mutation(
        "skip the fence of streams",
        "frames of an incarnation that was given up count for nothing",
        (
            Edit(
                "actors.rollout.tickets",
                "return None if stream is None or stream.gone or stream.incarnation != incarnation else "
                "stream",
                "return stream",
            ),
        ),
        ("I1", "I2", "I4"),
        ("zombie", "partition"),
    ),
    Mutation(
        "forget to supersede a ticket",
        "what still comes under a dispatch that was taken back is dropped",
        (
            Edit(
                "actors.rollout.tickets",
                "self.tickets[ticket] = msgspec.structs.replace(self.tickets[ticket], superseded=True)",
                "self.tickets[ticket] = self.tickets[ticket]",
            ),
        ),
        ("I1", "I2"),
    ),
    Mutation(
        "hand out what the trainer has",
        "a group reaches the trainer once, however often it asks",
        (
            Edit(
                "actors.rollout.handing_out",
                "            ready = [g for g in range(len(batch.groups)) if g not in have and "
                "batch.complete(g)]",
                "            ready = [g for g in range(len(batch.groups)) if batch.complete(g)]",
            ),
        ),
        ("I1", "I8"),
    ),
    Mutation(
        "hand out half a group",
        "a group is handed out only when all of it is scored",
        (
            Edit(
                "actors.rollout.token_log",
                "        return all(log.score is not None for log in self.groups[group])",
                "        return any(log.score is not None for log in self.groups[group])",
            ),
        ),
        ("I1", "I7"),
    ),
    Mutation(
        "do a lost step again in another order",
        "a step that was lost with its host is done again in its old micro-batches",
        (
            Edit(
                "actors.training.trainer",
                "        return [[there[group] for group in batch] for batch in record.micro_batches]",
                "        return [[there[group] for group in sorted(there)]]",
            ),
        ),
        ("I5", "I6"),
        ("kill_host",),
    ),
    Mutation(
        "record a step twice",
        "a step that is on record already is not recorded again",
        (
            Edit(
                "actors.cluster.state_manager",
                "        if trained is not None and trained.step > self._trained:\n"
                "            if trained.step != self._trained + 1:",
                "        if trained is not None:\n            if trained.step > self._trained + 1:",
            ),
        ),
        ("I5",),
        ("kill_process", "crash_actor"),
    ),
    Mutation(
        "go back without a word",
        "training that lost its newest state says so in the journal",
        (
            Edit(
                "actors.cluster.state_manager",
                "            await self.ctx.journal.append(Rewound(step=newest))\n",
                "",
            ),
        ),
        ("I5",),
        ("kill_host",),
    ),
    Mutation(
        "save before it is sealed",
        "a step is on record only when its state is safe from the death of the trainer",
        (
            Edit(
                "actors.training.trainer",
                "micro_batches=tuple(done.micro_batches))\n",
                'micro_batches=tuple(done.micro_batches))\n        await self._save(commit, b"")\n',
            ),
        ),
        ("I5", "I6", "I8"),
    ),
    Mutation(
        "believe every chunk",
        "bytes of weights are compared with their hashes: each chunk, and the whole image",
        (
            Edit("transport.bulk_pull", "        if digest == chunk.digest:\n", "        if True:\n"),
            Edit(
                "actors.weights.agent",
                "                manifest.verify(draft.view)\n",
                "",
            ),
        ),
        ("I6",),
        ("corrupt_chunk",),
    ),
    Mutation(
        "serve any version",
        "a request goes only to an instance that proved its version",
        (
            Edit(
                "actors.rollout.balancer",
                "            and self.version == version\n            and (root is None or self.root == "
                "root)\n",
                "",
            ),
        ),
        ("I3", "I8"),
    ),
    Mutation(
        "poll no more",
        "whoever waits for news asks again: the news itself may be lost",
        (
            Edit(
                "actors.training.controller",
                "                await wait.look(self._step_done, STEP_POLL_S)",
                "                await wait.look(self._step_done)",
            ),
        ),
        ("I8",),
    ),
    Mutation(
        "send nothing again",
        "a control link that comes back sends what was not acknowledged",
        (
            Edit(
                "transport.link_end",
                "        self.ready = True\n        self.out.rewind()\n",
                "        self.ready = True\n",
            ),
        ),
        ("I8", "no silent wait", "I9"),
        ("bad_link", "reset", "partition"),
    ),
    Mutation(
        "deliver control messages twice",
        "a control message that comes twice is delivered once",
        (
            Edit(
                "transport.session",
                "        self.expected = first + count\n",
                "        self.expected = first + count\n        known = 0\n",
            ),
        ),
        ("I1", "I8", "no stray failure"),
        ("bad_link", "reset", "partition"),
    ),
    Mutation(
        "follow the clock alone",
        "a new incarnation is above every older one, whatever the host's clock says",
        (
            Edit(
                "nodeagent.system",
                "        incarnations.at_least(await journals.newest_incarnation())  # whatever this "
                "host's clock says\n",
                "",
            ),
        ),
        ("I4", "I8"),
        ("clock_jump", "kill_process"),
    ),
    Mutation(
        "a ring without an end",
        "an instance that nobody acknowledges stops decoding when its ring is full",
        (
            Edit(
                "transport.token_ring",
                "        return len(self._frames) >= self.capacity",
                "        return False",
            ),
        ),
        ("I9",),
        ("zombie", "partition", "kill_process"),
    ),
    Mutation(
        "say nothing of late waits",
        "a wait that passes its deadline is an event",
        (
            Edit(
                "supervisor.waits",
                "        for wait in [wait for wait in self._waits.values() if wait.deadline.passed(now)]:",
                "        for wait in [wait for wait in self._waits.values() if False]:",
            ),
        ),
        ("no silent wait",),
    ),
    Mutation(
        "the last verdict counts",
        "a reward counts once: the first verdict, and only of a finished request",
        (
            Edit(
                "actors.rollout.state",
                '        elif log.score is not None:\n            changes.refused.append("scored_twice")\n',
                "",
            ),
            Edit(
                "actors.rollout.scoring",
                "            if log is not None and log.score is None:",
                "            if log is not None:",
            ),
        ),
        ("I7",),
        ("bad_scorer", "kill_process"),
    ),
    Mutation(
        "give nobody up",
        "an instance that holds requests in silence, or died, loses them to others",
        (
            Edit(
                "actors.rollout.manager",
                "        if event.name not in self._instances:  # otherwise it is back already\n"
                "            await self._lose(event.name, event.incarnation, event.cause)\n",
                "",
            ),
            Edit(
                "actors.rollout.manager",
                "            elif now - instance.heard_s > self._config.rollout.deadline_s and "
                "stream.live():",
                "            elif False:",
            ),
        ),
        ("I8", "no silent wait"),
        ("kill_host", "kill_process", "notice"),
    ),
    Mutation(
        "forget what was journaled",
        "a manager comes back with everything that was committed",
        (
            Edit(
                "actors.rollout.books",
                "            else:\n                self.state.apply(event)\n",
                '            elif type(event).__name__ != "FrameLogged":\n'
                "                self.state.apply(event)\n",
            ),
        ),
        ("I1", "I2"),
        ("kill_process", "kill_in_commit", "kill_on_message"),
    ),
)
BY_NAME: Mapping[str, Mutation] = {mutation.name: mutation for mutation in MUTATIONS}
