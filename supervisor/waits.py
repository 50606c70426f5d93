"""Waits: register of this process's waits on something outside the waiting actor.

An entry has the waiting actor, what it waits for and on, its start and its deadline. Owns the register and
the record of waits that passed their deadline. Does not own the waiting: the caller awaits. Asks are not
entered here at all; they are read from the pending asks when a caller lists them (`sources`), so that asking
costs nothing more.

**What is a wait.** A wait depends on another party: an answer, a credit, a process, a disk, a group of
samples, a host. It has a name in the register and a deadline. Idle is not a wait: an actor whose mailbox is
empty, a loop that sleeps until it has work (its own `Event`, set by its own handlers), a timer that fires by
itself. No other party has anything to deliver to an idle actor, so nothing can be late.

**What passes its deadline** is an event: one WARNING line, a count by reason, and an entry in a bounded ring.
A wait either raises then (`WaitTimeout`), or, where its owner would only wait on, is renewed (`go_on`): each
deadline that passes is an event of its own, and the wait keeps the time at which it began.

**A pause of this process** moves every deadline by its length: nothing could be received meanwhile
(`watch.turn_clock`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gleaner.supervisor.deadline import Deadline
from gleaner.supervisor.system_messages import ExpiredWait, WaitState
from gleaner.supervisor.wait import Waiting

log = logging.getLogger("supervisor.waits")

MAX_WAITS = 10_000
"""Registered at a time; ten for each of a thousand actors. One beyond it keeps its deadline but is not
listed; it is counted in `unlisted`."""
MAX_EXPIRED = 256
"""Expired waits kept in full, the newest; enough to read what led to a stall."""
MAX_REASONS = 256
"""Distinct reasons counted; reasons are constants of the code, so this bounds a defect. More count as
`other`."""
SWEEP_SLACK_S = 0.5
"""Deadlines that pass within such a time are handled together, at its end; `wait` has its own timer and is on
time."""
ROUNDING_S = 1e-3
"""Less is no pause."""
LINES_PER_S = 20
"""Log lines a second; a dead peer may time out thousands of asks at once. The others are counted in one
line."""


@dataclass(slots=True, eq=False)
class Wait:
    """One registered wait. `since_s` and `deadline` are loop time. `away_s`: how long the process had been
    stalled in sum when the deadline was set."""

    who: str
    what: str
    on: str
    since_s: float
    deadline: Deadline
    away_s: float
    renew_s: float = 0.0  # 0: its owner ends it at the deadline; else it is renewed by this much
    expired: int = 0  # how often its deadline passed
    until: asyncio.Future[Any] | None = None  # over when this is done, without a call of `end`

    def state(self, now: float) -> WaitState:
        """Its state, for inspection."""
        return WaitState(
            who=self.who,
            what=self.what,
            on=self.on,
            since_s=now - self.since_s,
            left_s=self.deadline.left_s(now),
            expired=self.expired,
        )


Source = Callable[[float], Iterable[WaitState]]


class Waits:
    """The register of one process. Not thread-safe; on the loop only.

    Args:
        turn_time: the loop's time less the pauses of this process; None: no pause is known of.
    """

    def __init__(self, turn_time: Callable[[], float] | None = None) -> None:
        self._turn_time = _now if turn_time is None else turn_time
        self.sources: list[Source] = []  # waits that are kept elsewhere; read when a caller lists them
        self.counts: Counter[str] = Counter()  # expired, by reason
        self.expired: deque[ExpiredWait] = deque(maxlen=MAX_EXPIRED)
        self.unlisted = 0
        self._waits: dict[int, Wait] = {}  # in the order of their beginning
        self._settling: deque[Wait] = deque()  # those with an `until`
        self._timer: asyncio.TimerHandle | None = None  # of the next sweep; none while nothing waits
        self._sweep_s = math.inf
        self._closed = False
        self._logged_at_s = 0.0
        self._logged = 0
        self._unsaid = 0

    def __len__(self) -> int:
        self._forget_settled()
        return len(self._waits)

    def begin(
        self,
        who: str,
        what: str,
        on: str,
        deadline: Deadline,
        *,
        renew_s: float = 0.0,
        until: asyncio.Future[Any] | None = None,
    ) -> Wait:
        """Enter a wait; the caller must `end` it, unless it is over when `until` is done. `what` is a few
        words without numbers (it is counted by them), `on` names what it waits on."""
        wait = Wait(who, what, on, _now(), deadline, self.away_s(), renew_s, until=until)
        if until is not None:
            while self._settling and _settled(self._settling[0]):  # they settle in order
                self.end(self._settling.popleft())
            self._settling.append(wait)
        if len(self._waits) < MAX_WAITS:
            self._waits[id(wait)] = wait
            if deadline.at_s + SWEEP_SLACK_S < self._sweep_s:
                self._sweep_at(deadline.at_s + SWEEP_SLACK_S)
        else:
            self.unlisted += 1
        return wait

    def end(self, wait: Wait) -> None:
        """It is over, however. A second call does nothing."""
        self._waits.pop(id(wait), None)

    def expire(self, who: str, what: str, on: str, waited_s: float, reason: str = "deadline passed") -> None:
        """The event: logged, counted, kept."""
        now = _now()
        counted = f"{what}: {reason}"
        self.counts[counted if counted in self.counts or len(self.counts) < MAX_REASONS else "other"] += 1
        self.expired.append(
            ExpiredWait(who=who, what=what, on=on, waited_s=waited_s, reason=reason, at_s=now)
        )
        if now - self._logged_at_s >= 1.0:
            if self._unsaid:
                log.warning("%d more waits passed their deadline", self._unsaid)
            self._logged_at_s, self._logged, self._unsaid = now, 0, 0
        if self._logged < LINES_PER_S:
            self._logged += 1
            log.warning("%s waited %.3f s for %s on %s: %s", who, waited_s, what, on, reason)
        else:
            self._unsaid += 1

    def sweep(self, now: float) -> None:
        """Turn what passed its deadline unnoticed into events."""
        self._forget_settled()
        for wait in [wait for wait in self._waits.values() if self.is_late(wait, now)]:
            if wait.renew_s:
                self._passed(wait, now)
                self.grant(wait, wait.renew_s)
            elif not wait.expired:
                self._passed(wait, now)  # reported once, here or by its owner; it stays listed until it ends

    def away_s(self) -> float:
        """How long this process has been stalled in sum so far."""
        return _now() - self._turn_time()

    def grant(self, wait: Wait, seconds: float) -> None:
        """A new deadline, so far from now."""
        wait.deadline, wait.away_s = Deadline.after(seconds, _now()), self.away_s()

    def is_late(self, wait: Wait, now: float) -> bool:
        """Whether the deadline has passed, after the pauses since it was set were added to it."""
        if not wait.deadline.passed(now):
            return False
        away_s = self.away_s()
        if away_s - wait.away_s > ROUNDING_S:
            wait.deadline = Deadline.after(away_s - wait.away_s, wait.deadline.at_s)
            wait.away_s = away_s
        return wait.deadline.passed(now)

    def close(self) -> None:
        """Sweep no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _forget_settled(self) -> None:
        for wait in [wait for wait in self._settling if _settled(wait)]:
            self._settling.remove(wait)
            self.end(wait)

    def _sweep_at(self, at_s: float) -> None:
        if self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._sweep_s = at_s
        self._timer = asyncio.get_running_loop().call_at(at_s, self._due)

    def _due(self) -> None:
        """A wait may have ended or been extended since the timer was set."""
        self._timer, self._sweep_s = None, math.inf
        self.sweep(_now())
        # Expired waits that are not renewed have been reported in full.
        ahead = (wait.deadline.at_s for wait in self._waits.values() if wait.renew_s or not wait.expired)
        if (next_s := min(ahead, default=math.inf)) < math.inf:
            self._sweep_at(next_s + SWEEP_SLACK_S)

    def snapshot(self, limit: int = MAX_WAITS) -> list[WaitState]:
        """Every wait now, the oldest first; at most `limit`."""
        now = _now()
        self._forget_settled()
        states = [wait.state(now) for wait in self._waits.values()]
        for source in self.sources:
            states.extend(source(now))
        states.sort(key=lambda state: -state.since_s)
        return states[:limit]

    def waiting(self, who: str, what: str, on: str, deadline_s: float, *, go_on: bool = False) -> Waiting:
        """See `Context.wait`."""
        return Waiting(self, who, what, on, deadline_s, go_on)

    def passed(self, wait: Wait) -> None:
        """The owner of `wait` met its deadline."""
        if not wait.expired:
            self._passed(wait, _now())

    def _passed(self, wait: Wait, now: float) -> None:
        wait.expired += 1
        self.expire(wait.who, wait.what, wait.on, now - wait.since_s)


def _settled(wait: Wait) -> bool:
    return wait.until is not None and wait.until.done()


def _now() -> float:
    return asyncio.get_running_loop().time()
