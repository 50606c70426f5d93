"""Planted bugs below the actors: streams, control links, incarnations, waits.

They are in `transport`, `supervisor` and `nodeagent`.
"""

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation

MESSAGES: tuple[Mutation, ...] = (
    Mutation(
        "no deduplication of frames",
        "a repeated frame counts once: in the receiver, and again in the state",
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
        "accept frames out of order",
        "a gap in a stream is requested before later frames count",
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
        "unbounded token ring",
        "an instance without acknowledgements stops decoding when its ring is full",
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
        "a drop beyond the credit that is not counted",
        "a receiver delivers what it granted, whatever its own count of dropped frames shows",
        (
            Edit(
                "gleaner.transport.token_ring",
                "        if seq > self.acked + window:\n",
                "        if seq >= self.acked + window:\n",
            ),
            Edit(
                "gleaner.transport.stream_receiver",
                '                self._refusals.count(route.decode(errors="replace"), "over-credit", '
                'f"frame {frame.seq}")\n',
                "                pass\n",
            ),
        ),
        ("stream credit",),
        faults=("freeze",),
    ),
    Mutation(
        "one credit more at both ends",
        "sender and receiver count the credit that is on the network",
        (
            Edit(
                "gleaner.transport.token_ring",
                "        if seq > self.acked + window:\n",
                "        if seq > self.acked + window + 1:\n",
            ),
            Edit(
                "gleaner.transport.token_ring",
                "min(self.last_seq, self.acked + self.window)",
                "min(self.last_seq, self.acked + self.window + 1)",
            ),
        ),
        ("stream credit",),
        faults=("freeze",),
    ),
    Mutation(
        "no retransmission",
        "a control link retransmits unacknowledged messages: on a new connection, and on request",
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
        ("I8", "no silent wait", "I9", "once and in order", "membership"),
        lead="a bad network",
    ),
    Mutation(
        "no deduplication of control messages",
        "a repeated control message is delivered once",
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
        "skip a gap of control messages",
        "a missing control message is requested before later ones are delivered",
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
        "incarnations from the clock alone",
        "a new incarnation is above every older one in the journal and in the registry, whatever the host's "
        "clock shows",
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
        "late waits not reported",
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
        "a write behind a failed one is kept",
        "a journal's stream has no hole where a write found no space",
        (
            Edit(
                "gleaner.supervisor.journal.lost_writes",
                "        return failure[2]\n",
                "        return None\n",
            ),
        ),
        ("I1", "I2", "I4", "I5", "I6", "contents", "plans survive"),
        lead="a disk that is full for moments",
    ),
    Mutation(
        "own pause counted as silence",
        "silence is measured in turns of the own loop, and a session dropped in a pause is opened again",
        (
            Edit(
                "gleaner.supervisor.watch.turn_clock",
                "            return now_s - self._paused_s()\n",
                "            return now_s\n",
            ),
            Edit(
                "gleaner.transport.link_receiver",
                '            self._table.anew(end, "session dropped")\n',
                '            self._table.over(end, Link.DOWN, "peer restarted")\n',
            ),
        ),
        ("invented death",),
        lead="a head that hangs",
    ),
    Mutation(
        "hung process not killed",
        "a child process without a heartbeat is killed",
        (
            Edit(
                "gleaner.supervisor.watch.heartbeats",
                "            elif cause := pulse.look(now_s, child.cpu_s):\n",
                '            elif cause := "":\n',
            ),
        ),
        ("hung process", "I8"),
        lead="processes that hang",
    ),
    Mutation(
        "kill without a reason",
        "the exit reason of a hung process names the missing heartbeat",
        (
            Edit(
                "gleaner.supervisor.watch.heartbeats",
                "                child.kill(cause)\n",
                "                child.kill()\n",
            ),
        ),
        ("hung process",),
        lead="processes that hang",
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
        ("recovery time", "I8"),
        lead="restarts below the numbers of before",
    ),
)
