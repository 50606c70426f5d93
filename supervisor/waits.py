"""Every wait of this process on something outside the one who waits: who, for what, on whom, since, until.

Owns the register of waits and the record of those that passed their deadline. Does not own the waiting: what
is awaited is the caller's, and asks are not entered here at all; they are read from the pending asks when
somebody looks (`sources`), so that asking costs nothing more.

**Where the line is drawn.** A wait is on somebody: an answer, a credit, a process, a disk, a group of
samples, a host. It has a name in the register and a deadline. Idle is not a wait: an actor whose mailbox is
empty, a loop that sleeps until it has work (its own `Event`, set by its own handlers), a timer that fires by
itself. Nobody owes an idle actor anything, so nothing can be late.

**What passes its deadline** is an event: one WARNING line, a count by reason, and an entry in a bounded ring.
A wait either raises then (`WaitTimeout`), or, where its owner would only wait on, is renewed (`go_on`): each
deadline that passes is an event of its own, and the wait keeps the time at which it began.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from supervisor.deadline import Deadline
from supervisor.errors import WaitTimeout
from supervisor.system_messages import ExpiredWait, WaitState

log = logging.getLogger("supervisor.waits")

MAX_WAITS = 10_000
"""Registered at a time; ten for each of a thousand actors. One beyond it keeps its deadline but is not
listed; it is counted in `unlisted`."""
MAX_EXPIRED = 256
"""Expired waits kept in full, the newest; enough to read what led to a stall."""
MAX_REASONS = 256
"""Distinct reasons counted; reasons are words of the code, so this bounds a mistake. More count as
`other`."""
SWEEP_SLACK_S = 0.5
"""Deadlines that pass within such a time are looked at together, at its end; who waits by `wait` has its own
timer and is on time."""
LINES_PER_S = 20
"""Log lines a second; a dead peer may time out thousands of asks at once. The others are counted in one
line."""


@dataclass(slots=True, eq=False)
class Wait:
    """One registered wait. `since_s` and `deadline` are loop time."""

    who: str
    what: str
    on: str
    since_s: float
    deadline: Deadline
    renew_s: float = 0.0  # 0: its owner ends it at the deadline; else it is renewed by this much
    expired: int = 0  # how often its deadline passed
    until: asyncio.Future[Any] | None = None  # over when this is done, without being told

    def state(self, now: float) -> WaitState:
        """What others see of it."""
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
    """The register of one process. Not thread-safe; on the loop only."""

    def __init__(self) -> None:
        self.sources: list[Source] = []  # waits that are kept elsewhere; read when somebody looks
        self.counts: Counter[str] = Counter()  # expired, by reason
        self.expired: deque[ExpiredWait] = deque(maxlen=MAX_EXPIRED)
        self.unlisted = 0
        self._waits: dict[int, Wait] = {}  # in the order of their beginning
        self._settling: deque[Wait] = deque()  # those with an `until`
        self._timer: asyncio.TimerHandle | None = None  # of the next sweep; none while nothing waits
        self._sweep_s = math.inf
        self._closed = False
        self._said_at_s = 0.0
        self._said = 0
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
        """Enter a wait; whoever began it must `end` it, unless it is over when `until` is done. `what` is a
        few words without numbers (it is counted by them), `on` names whom it is on."""
        wait = Wait(who, what, on, _now(), deadline, renew_s, until=until)
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
        if now - self._said_at_s >= 1.0:
            if self._unsaid:
                log.warning("%d more waits passed their deadline", self._unsaid)
            self._said_at_s, self._said, self._unsaid = now, 0, 0
        if self._said < LINES_PER_S:
            self._said += 1
            log.warning("%s waited %.3f s for %s on %s: %s", who, waited_s, what, on, reason)
        else:
            self._unsaid += 1

    def sweep(self, now: float) -> None:
        """Turn what passed its deadline unnoticed into events."""
        self._forget_settled()
        for wait in [wait for wait in self._waits.values() if wait.deadline.passed(now)]:
            if wait.renew_s:
                self._passed(wait, now)
                wait.deadline = Deadline.after(wait.renew_s, now)
            elif not wait.expired:
                self._passed(wait, now)  # said once, here or by its owner; it stays listed until it ends

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
        """What was waited for when the timer was set may be here, or have been given more time."""
        self._timer, self._sweep_s = None, math.inf
        self.sweep(_now())
        # Of those that expired and are not renewed everything is said.
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


class Waiting:
    """`async with` around what is awaited: registered inside, `WaitTimeout` at the deadline."""

    def __init__(self, waits: Waits, who: str, what: str, on: str, deadline_s: float, go_on: bool) -> None:
        if not deadline_s >= 0:
            raise ValueError(f"a wait for {what} needs a deadline of 0 s or more, not {deadline_s!r}")
        self._waits = waits
        self._words = (who, what, on)
        self._deadline_s = deadline_s
        self._go_on = go_on
        self._wait: Wait | None = None
        self._timeout: asyncio.Timeout | None = None

    async def __aenter__(self) -> Waiting:
        deadline = Deadline.after(self._deadline_s, _now())
        renew_s = self._deadline_s if self._go_on else 0.0
        self._wait = self._waits.begin(*self._words, deadline, renew_s=renew_s)
        if not self._go_on:
            self._timeout = asyncio.timeout_at(deadline.at_s)
            await self._timeout.__aenter__()
        return self

    def progress(self) -> None:
        """Whoever is waited for has moved: the whole deadline is given again."""
        assert self._wait is not None, "progress() outside of `async with`"
        self._wait.deadline = Deadline.after(self._deadline_s, _now())
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(self._wait.deadline.at_s)

    async def look(self, event: asyncio.Event, within_s: float | None = None) -> bool:
        """Within this wait: until `event` is set, or `within_s` have passed and it is time to look elsewhere;
        whether it is set."""
        return await idle(event, within_s)

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        wait = self._wait
        assert wait is not None
        self._waits.end(wait)
        if self._timeout is None:
            return
        try:
            await self._timeout.__aexit__(kind, problem, trace)
        except TimeoutError:
            self._waits.passed(wait)
            who, what, on = self._words
            waited_s = _now() - wait.since_s
            raise WaitTimeout(f"{who} waited {waited_s:.1f} s for {what} on {on}") from None


async def idle(event: asyncio.Event, at_most_s: float | None = None) -> bool:
    """See `Context.idle`. (Not by `asyncio.wait_for`, which before Python 3.12 may swallow a
    cancellation.)"""
    if event.is_set() or at_most_s is None:
        await event.wait()
        return True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()
    return event.is_set()


def _settled(wait: Wait) -> bool:
    return wait.until is not None and wait.until.done()


def _now() -> float:
    return asyncio.get_running_loop().time()
