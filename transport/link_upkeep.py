"""What control links do without being told to: leave together, acknowledge late, ask, try again, give up.

Owns the timers of all links of a process: three at most, none while nothing is open. What is said is
`link_end`.
"""

import asyncio

from transport.link_end import LinkEnd
from transport.link_table import LinkTable
from transport.wire import Link, Sent

RETRY_S = 0.005  # a wire that was full is tried again after this time
BRISK_S = 0.1  # ends are looked after this often while something is on its way
CALM_S = 10.0  # and this often while all is quiet


class Upkeep:
    """See the module."""

    def __init__(self, table: LinkTable) -> None:
        self._table = table
        self._limits = table.limits
        self._loop = asyncio.get_running_loop()
        self._dirty: list[LinkEnd] = []  # ends with messages of this turn
        self._flushing = False  # `flush_dirty` comes in this turn
        self._owing: list[LinkEnd] = []  # ends that owe an acknowledgement
        self._ack_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        self._brisk = False
        self._closed = False

    def close(self) -> None:
        """Stop every timer, for good."""
        self._closed = True
        for timer in (self._ack_timer, self._retry_timer, self._watch_timer):
            if timer is not None:
                timer.cancel()

    # -- what waits to be sent --

    def flush_soon(self, end: LinkEnd) -> None:
        """Send at the end of this turn of the loop."""
        self._dirty.append(end)
        self.flush_this_turn()

    def flush_this_turn(self) -> None:
        """Flush after everything that is scheduled now: called when messages were delivered, so that their
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
        """Send what waits at one end."""
        if not end.flush():
            self._retry()
        if not self._brisk:
            self.look_briskly()

    def resume(self, end: LinkEnd) -> None:
        """Its session stands: go on behind what was received."""
        self.wake(end)
        if not end.resume():
            self._retry()
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
        """There may be room for tellers that wait."""
        # Whoever was woken may have given up: look again behind them, until the room is used.
        if end.waiters and end.wake() and end.out.room() > 0:
            self._loop.call_soon(self.wake, end)

    def owe(self, end: LinkEnd) -> None:
        """Something was received or consumed: acknowledge it, now or with others."""
        if end.owes_much:
            end.acknowledge()
        elif not end.owing and end.owes:
            end.owing = True
            self._owing.append(end)
            if self._ack_timer is None and not self._closed:
                self._ack_timer = self._loop.call_later(self._limits.ack_delay_s, self._acknowledge)

    def _acknowledge(self) -> None:
        self._ack_timer = None
        owing, self._owing = self._owing, []
        for end in owing:
            end.owing = False
            if self._table.ends.get(end.to) is not end:
                continue  # it has ended: to say this would dial its peer anew, or speak on the next link
            if end.owes and end.acknowledge() is Sent.NO_CREDIT:
                self.owe(end)

    # -- what does not come --

    def look_briskly(self) -> None:
        """Something is on its way: look after it soon."""
        if not self._brisk and not self._closed:
            self._brisk = True
            if self._watch_timer is not None:
                self._watch_timer.cancel()
            self._watch_timer = self._loop.call_later(BRISK_S, self._look)

    def _look(self) -> None:
        now_s = self._loop.time()
        busy = [self._look_after(end, now_s) for end in self._table.each()]
        self._brisk = any(busy)
        pause_s = BRISK_S if self._brisk else CALM_S
        self._watch_timer = self._loop.call_later(pause_s, self._look) if busy and not self._closed else None

    def _look_after(self, end: LinkEnd, now_s: float) -> bool:
        """Ask, greet again or give up; whether the end must be looked after soon again."""
        if not end.ready:
            return self._look_after_broken(end, now_s)
        end.since_s = now_s
        if end.out.in_flight or end.waiters:
            if end.out.first_unacked != end.acked_at_probe:
                end.acked_at_probe = end.out.first_unacked
                end.asked_at_s = now_s
            elif now_s - end.asked_at_s >= self._limits.probe_s:
                end.asked_at_s = now_s
                end.acknowledge(ask=True)
        elif end.peer is None and now_s - end.heard_at_s > self._limits.silence_s:
            end.heard_at_s = now_s
            if end.acknowledge() is Sent.NO_ROUTE:
                self._table.remove(end, "route gone")
        return end.out.unacked > 0 or bool(end.waiters)

    def _look_after_broken(self, end: LinkEnd, now_s: float) -> bool:
        since_s = now_s - end.since_s
        if end.peer is None:
            if since_s > self._limits.broken_s:
                self._table.remove(end, "route gone")
        elif not end.connected:
            return False  # the wire has its own deadlines, and tells
        elif since_s > self._limits.answer_s:
            source = end.route or end.peer.endpoint.encode()
            self._table.wire.refuse(source, "no-welcome", f"silent for {since_s:.1f} s after our HELLO")
            self._table.over(end, Link.DOWN, "no welcome")
        elif now_s - end.asked_at_s >= self._limits.probe_s:
            end.greet(now_s)
        return True
