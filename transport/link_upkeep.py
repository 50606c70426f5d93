"""Upkeep: timers of control links (flush, acknowledge, probe, retry, give up).

Owns the timers of all links of a process: three at most, none while nothing is open. `link_end` makes the
messages. Timers are lazy: a timer that fires and finds its reason gone does nothing, instead of being set
anew at every message.

What an exchange costs: an ask is acknowledged by its answer, and the answer by the next ask to the same
process, if that arrives within `LinkLimits.answer_ack_s`. A separate acknowledgement frame is sent only if no
other frame goes in that direction.
"""

import asyncio
import math

from gleaner.transport.link_end import LinkEnd
from gleaner.transport.link_table import LinkTable
from gleaner.transport.wire import STOOD_STILL_S, Link, Sent

RETRY_S = 0.005  # a wire that was full is tried again after this time
BRISK_S = 0.1  # ends without an open session are checked this often
CALM_S = 10.0  # and those that others dialled this often while all is quiet
SLACK_S = 0.002  # a timer may fire so early: loops count milliseconds


class Upkeep:
    """See the module."""

    def __init__(self, table: LinkTable) -> None:
        self._table = table
        self._limits = table.limits
        self._loop = asyncio.get_running_loop()
        self._dirty: list[LinkEnd] = []  # ends with messages of this turn
        self._flushing = False  # `flush_dirty` is scheduled for this turn
        self._owing: list[LinkEnd] = []  # ends whose acknowledgement is due, or was
        self._ack_timer: asyncio.TimerHandle | None = None
        self._ack_due_s = math.inf
        self._retry_timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._look_due_s = math.inf
        self._closed = False

    def close(self) -> None:
        """Stop every timer, for good."""
        self._closed = True
        for timer in (self._ack_timer, self._retry_timer, self._look_timer):
            if timer is not None:
                timer.cancel()

    # -- messages that wait to be sent --

    def flush_soon(self, end: LinkEnd) -> None:
        """Send at the end of this turn of the loop."""
        self._dirty.append(end)
        self.flush_this_turn()

    def flush_this_turn(self) -> None:
        """Flush after all callbacks that are scheduled now. Called when asks were delivered, so that their
        answers leave in the turn in which they are made."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush_dirty)

    def flush_dirty(self) -> None:
        """Send what the turn has gathered."""
        self._flushing = False
        dirty, self._dirty = self._dirty, []
        for end in dirty:
            self.flush(end)

    def flush(self, end: LinkEnd) -> None:
        """Send the waiting messages of one end."""
        out, stood = end.out, end.ready
        quiet = not out.in_flight
        if not end.flush():
            self._retry()
        if end.ready:
            if out.in_flight:
                now_s = self._loop.time()
                if quiet:
                    end.asked_at_s, end.acked_at_probe = now_s, out.first_unacked
                self._look_by(now_s + self._patience_s(end))
        else:
            now_s = self._loop.time()
            if stood:
                end.since_s = now_s
            self._look_by(now_s + BRISK_S)

    def resume(self, end: LinkEnd) -> None:
        """The session of this end is open: continue after the last received message."""
        self.wake(end)
        if not end.resume():
            self._retry()
        end.asked_at_s, end.acked_at_probe = self._loop.time(), end.out.first_unacked
        self.look_briskly()

    def _retry(self) -> None:
        if self._retry_timer is None and not self._closed:
            self._retry_timer = self._loop.call_later(RETRY_S, self._flush_all)

    def _flush_all(self) -> None:
        self._retry_timer = None
        for end in self._table.each():
            self.flush(end)

    # -- what was received --

    def wake(self, end: LinkEnd) -> None:
        """There may be free capacity for waiting senders."""
        # A woken sender may have given up: wake the next ones, until the capacity is used.
        if end.waiters and end.wake() and end.out.room() > 0:
            self._loop.call_soon(self.wake, end)

    def owe(self, end: LinkEnd, within_s: float) -> None:
        """Something was received or consumed: acknowledge it now if it is much, else with the next frame in
        that direction `within_s`, or by itself."""
        if end.ack_overdue:
            end.acknowledge()
        elif end.ack_due:
            by_s = self._loop.time() + within_s
            if by_s < end.ack_by_s:
                end.ack_by_s = by_s
                if not end.owing:
                    end.owing = True
                    self._owing.append(end)
                self._acknowledge_by(by_s)

    def pay(self) -> None:
        """Acknowledge everything: nothing more will go that way."""
        for end in self._table.each():
            if end.ready and end.ack_due:
                end.acknowledge()

    def _acknowledge_by(self, at_s: float) -> None:
        if at_s < self._ack_due_s and not self._closed:
            if self._ack_timer is not None:
                self._ack_timer.cancel()
            self._ack_due_s = at_s
            self._ack_timer = self._loop.call_at(at_s, self._acknowledge)

    def _acknowledge(self) -> None:
        self._ack_timer, self._ack_due_s = None, math.inf
        now_s = self._loop.time() + SLACK_S
        owing, self._owing = self._owing, []
        for end in owing:
            end.owing = False
            if self._table.ends.get(end.to) is not end:
                continue  # it has ended: a frame would dial its peer anew, or go to the next link
            if end.ack_by_s > now_s:
                if end.ack_due:  # acknowledged meanwhile, and due again
                    end.owing = True
                    self._owing.append(end)
                    self._acknowledge_by(end.ack_by_s)
                continue
            end.ack_by_s = math.inf
            if end.ack_due and end.acknowledge() is Sent.NO_CREDIT:
                self.owe(end, self._limits.ack_delay_s)

    # -- overdue messages --

    def look_briskly(self) -> None:
        """A state is not final (a greeting, a broken link, an open question): check it soon."""
        self._look_by(self._loop.time() + BRISK_S)

    def _look_by(self, at_s: float) -> None:
        if at_s < self._look_due_s and not self._closed:
            if self._look_timer is not None:
                self._look_timer.cancel()
            self._look_due_s = at_s
            self._look_timer = self._loop.call_at(at_s, self._look)

    def _look(self) -> None:
        now_s = self._loop.time()
        if (stalled_s := now_s - self._look_due_s) >= STOOD_STILL_S:
            for end in self._table.each():
                end.excuse(stalled_s, now_s)
        self._look_timer, self._look_due_s = None, math.inf
        due_s, heard_s = math.inf, now_s - self._limits.silence_s
        for end in self._table.each():
            if end.idle and (end.peer is not None or end.heard_at_s >= heard_s):  # as nearly all are
                end.since_s = now_s
                at_s = math.inf if end.peer is not None else now_s + CALM_S
            else:
                at_s = self._look_after(end, now_s)
            if at_s < due_s:
                due_s = at_s
        if due_s < math.inf:
            self._look_by(max(due_s, now_s + SLACK_S))

    def _patience_s(self, end: LinkEnd) -> float:
        """How long to wait for an acknowledgement before a probe. Answers are acknowledged later than the
        rest."""
        if end.out.answers_only and not end.waiters:
            return self._limits.answer_ack_s + self._limits.probe_s
        return self._limits.probe_s

    def _look_after(self, end: LinkEnd, now_s: float) -> float:
        """Probe, greet again or give up; returns when to check the end again."""
        if not end.ready:
            return self._look_after_broken(end, now_s)
        end.since_s = now_s
        if end.out.in_flight or end.waiters:
            patience_s = self._patience_s(end)
            if end.out.first_unacked != end.acked_at_probe:
                end.acked_at_probe = end.out.first_unacked
                end.asked_at_s = now_s
            elif now_s - end.asked_at_s >= patience_s - SLACK_S:
                end.asked_at_s = now_s
                if end.acknowledge(ask=True) is Sent.NO_ROUTE and end.peer is None:
                    # the dialler reconnects in time, or never; there is no peer to acknowledge to
                    end.ready = False
                    return self._look_after_broken(end, now_s)
            return end.asked_at_s + patience_s
        if end.peer is not None:
            return math.inf
        if now_s - max(end.heard_at_s, end.asked_at_s) > self._limits.silence_s:
            end.asked_at_s = now_s
            if end.acknowledge() is Sent.NO_ROUTE:
                self._table.remove(end, "route gone")
                return math.inf
        return now_s + CALM_S

    def _look_after_broken(self, end: LinkEnd, now_s: float) -> float:
        since_s = now_s - end.since_s
        if end.peer is None:
            if since_s > self._limits.broken_s:
                self._table.remove(end, "route gone")
                return math.inf
            return end.since_s + self._limits.broken_s + SLACK_S
        if not end.connected:
            return math.inf  # the wire has its own deadlines, and reports
        if since_s > self._limits.answer_s:
            source = end.route or end.peer.endpoint.encode()
            self._table.wire.refuse(source, "no-welcome", f"silent for {since_s:.1f} s after our HELLO")
            self._table.over(end, Link.DOWN, "no welcome")
            return math.inf
        if now_s - end.asked_at_s >= self._limits.probe_s - SLACK_S:
            end.greet(now_s)
        return min(end.asked_at_s + self._limits.probe_s, end.since_s + self._limits.answer_s + SLACK_S)
