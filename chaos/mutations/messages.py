"""Planted bugs below the actors: streams, control links, incarnations, waits.

They are in `transport`, `supervisor` and `nodeagent`.
"""

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation

MESSAGES: tuple[Mutation, ...] = (
    Mutation(
        "drop the dedupe of frames",
        "a frame that comes twice counts once: in the receiver, and again in the state",
        (
            Edit(
                "gleaner.transport.token_ring",
                "        if seq <= self.delivered:\n            return Verdict.DUPLICATE\n",
                "        if seq <= self.delivered:\n            return Verdict.DELIVER\n",
            ),
            Edit(
                "gleaner.actors.rollout.state.state",
                "        elif event.seq <= stream.last_seq:\n"
                '            changes.refused.append("duplicate")\n'
                "        elif event.seq - event.frames != stream.last_seq:\n"
                '            changes.refused.append("gap")\n',
                "",
            ),
        ),
        ("I1", "I2"),
        lead="a bad network",
    ),
    Mutation(
        "take frames out of order",
        "a gap in a stream is asked for before anything after it counts",
        (
            Edit(
                "gleaner.transport.token_ring",
                "        if seq == self.delivered + 1:\n            return Verdict.DELIVER\n",
                "        if seq > self.delivered:\n            self.delivered = seq - 1\n"
                "            return Verdict.DELIVER\n",
            ),
            Edit(
                "gleaner.actors.rollout.state.state",
                "        elif event.seq - event.frames != stream.last_seq:\n"
                '            changes.refused.append("gap")\n',
                "",
            ),
        ),
        ("I1", "I2"),
        lead="a bad network",
    ),
    Mutation(
        "a ring without an end",
        "an instance that nobody acknowledges stops decoding when its ring is full",
        (
            Edit(
                "gleaner.transport.token_ring",
                "        return len(self._frames) >= self.capacity",
                "        return False",
            ),
        ),
        ("I9",),
        lead="a manager that is silent",
    ),
    Mutation(
        "send nothing again",
        "a control link sends again what was not acknowledged: on a new connection, and when it is asked to",
        (
            Edit(
                "gleaner.transport.link_end",
                "        self.ready = True\n        self.out.rewind()\n",
                "        self.ready = True\n",
            ),
            Edit(
                "gleaner.transport.link_receiver",
                "        if frame.again and end.ready:\n",
                "        if False:\n",
            ),
        ),
        ("I8", "no silent wait", "I9", "once and in order"),
        lead="a bad network",
    ),
    Mutation(
        "deliver control messages twice",
        "a control message that comes twice is delivered once",
        (
            Edit(
                "gleaner.transport.session",
                "        if known >= count:\n            return count\n",
                "        if known >= count:\n            return 0\n",
            ),
        ),
        ("once and in order",),
        lead="a bad network",
    ),
    Mutation(
        "go on behind a gap",
        "a control message that is missing is asked for before one behind it is delivered",
        (
            Edit(
                "gleaner.transport.session",
                "        if known < 0:\n            self.gaps += 1\n            return count\n",
                "        known = max(known, 0)\n",
            ),
        ),
        ("once and in order",),
        lead="a bad network",
    ),
    Mutation(
        "follow the clock alone",
        "a new incarnation is above every older one, whatever the host's clock says: above those of its own "
        "journal, and those that the registry tells of",
        (
            Edit(
                "gleaner.nodeagent.system",
                "        incarnations.at_least(await journals.newest_incarnation())  # even if this "
                "host's clock is behind\n",
                "",
            ),
            Edit(
                "gleaner.supervisor.names.client",
                "            self._system.incarnations.at_least(holder)\n",
                "",
            ),
        ),
        ("I4", "I8"),
        lead="a clock that went back",
    ),
    Mutation(
        "say nothing of late waits",
        "a wait that passes its deadline is an event",
        (
            Edit(
                "gleaner.supervisor.waits",
                "            if deadline.at_s + SWEEP_SLACK_S < self._sweep_s:\n",
                "            if False:\n",
            ),
        ),
        ("no silent wait",),
        lead="verifiers that hang",
    ),
    Mutation(
        "a pause is blamed on others",
        "silence is measured in turns of the own loop, and a session that was dropped meanwhile begins anew",
        (
            Edit(
                "gleaner.supervisor.watch.turn_clock",
                "        return now_s - self._away_s - self._late_s(now_s)\n",
                "        return now_s\n",
            ),
            Edit(
                "gleaner.transport.link_receiver",
                '            self._table.anew(end, "session dropped")\n',
                '            self._table.over(end, Link.DOWN, "peer restarted")\n',
            ),
        ),
        ("invented death",),
        lead="a head that stands still",
    ),
    Mutation(
        "a hung process is left alone",
        "a child process without a heartbeat is killed",
        (
            Edit(
                "gleaner.supervisor.watch.heartbeats",
                "            elif cause := pulse.look(now_s, child.cpu_s):\n",
                '            elif cause := "":\n',
            ),
        ),
        ("hung process", "I8"),
        lead="processes that stand still",
    ),
    Mutation(
        "a killed process does not say why",
        "the end of a process that stood still says that it gave no heartbeat",
        (
            Edit(
                "gleaner.supervisor.watch.heartbeats",
                "                child.kill(cause)\n",
                "                child.kill()\n",
            ),
        ),
        ("hung process",),
        lead="processes that stand still",
    ),
    Mutation(
        "an end before the start is noticed",
        "an actor that ends before its supervisor notices its start is started again",
        (
            Edit(
                "gleaner.supervisor.managed_child",
                "            self._early = exit_  # `start` reports it\n",
                "",
            ),
        ),
        ("I8",),
        lead="restarts below the numbers of before",
    ),
)
