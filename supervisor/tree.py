"""TreeState: supervision as a pure state machine, from events to stops and starts.

The stops and starts are in order. Owns strategies, restart types, automatic shutdown and intensity, as OTP
documents them (`supervisor`, and "Supervisor Behaviour" in its design principles). Starts nothing itself:
`supervision.Supervisor` carries the actions out and reports their results.

Where it departs from OTP, on purpose:

- **Back-off.** OTP restarts at once until the intensity is spent. Here the first restart is immediate and the
  next ones in a row wait, doubling, with jitter: the cause is often a peer or a disk that needs a second,
  and hosts that lost the same peer must not return at the same time. A batch waits before its first start,
  so that the order of starts holds.
- **Hopeless.** A child may report that its next life would end as this one did (a damaged journal, settings
  that cannot be used). Its supervisor fails at once with that reason; it does not spend its intensity first.
- **Default intensity** 3 in 10 s, not 1 in 5 s: with back-off a burst of three takes a second.
"""

import enum
import random
from collections import deque
from dataclasses import dataclass, replace

from gleaner.supervisor.child_spec import AutoShutdown, ChildSpec, Restart, Strategy, TreeSpec

MAX_BACKOFF_S = 10.0  # a peer that is gone for longer will not return


class Status(enum.Enum):
    """Status of a declared child."""

    DOWN = "down"  # not started yet, stopped on purpose, or ended permanently
    RUNNING = "running"
    RESTARTING = "restarting"  # it failed and its next start waits


class EndReason(enum.Enum):
    """Why a supervisor ends."""

    INTENSITY = "intensity"  # more restarts than it may do: fails upward
    HOPELESS = "hopeless"  # a child reports that a restart would not help: fails upward
    START = "start"  # a child could not be started for the first time: fails upward
    SIGNIFICANT = "significant"  # its significant children are done: an ordered end


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop this child, in order; `again`: it starts again with the child whose failure led to this."""

    name: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Start this child; `because` names the child whose failure led to it, "" for a first start."""

    name: str
    because: str = ""


@dataclass(frozen=True, slots=True)
class RestartLater:
    """Call `again` with this ticket after `delay_s`."""

    name: str
    delay_s: float
    ticket: int


@dataclass(frozen=True, slots=True)
class End:
    """The supervisor ends, after the stops before this. `name` is the child that led to it."""

    why: EndReason
    name: str
    text: str


Action = Stop | Start | RestartLater | End


@dataclass(frozen=True, slots=True)
class Counts:
    """OTP's count_children: declared children, those that run, subtrees and workers among the declared."""

    specs: int
    active: int
    supervisors: int
    workers: int


class TreeState:
    """State of one supervisor: its children in order, which of them run, and the failures within the window.

    The actions of a call are carried out in order; one that fails is reported by `start_failed`, and the
    return value of that replaces the rest.

    Args:
        spec: the supervisor.
        rng: source of jitter, injected.
    """

    def __init__(self, spec: TreeSpec, rng: random.Random) -> None:
        self.spec = spec
        self.children: dict[str, ChildSpec] = {}
        if spec.strategy is not Strategy.SIMPLE_ONE_FOR_ONE:
            self.children = {child.name: child for child in spec.children}
        self.status: dict[str, Status] = dict.fromkeys(self.children, Status.DOWN)
        self.restarts: deque[float] = (
            deque()
        )  # bounded: pruned to the window, one beyond the intensity ends it
        self._in_a_row: dict[str, tuple[int, float]] = {}
        self._tickets: dict[str, int] = {}
        self._ticket = 0
        self._starting = True
        self.over = False
        self._rng = rng

    def running(self) -> list[str]:
        """Children that run, in order."""
        return [name for name, status in self.status.items() if status is Status.RUNNING]

    def counts(self) -> Counts:
        """Number of children by kind."""
        trees = sum(spec.is_tree for spec in self.children.values())
        return Counts(len(self.children), len(self.running()), trees, len(self.children) - trees)

    # -- the whole --

    def start(self) -> list[Start]:
        """Begin: every child, left to right."""
        return [Start(name) for name in self.children]

    def complete(self) -> None:
        """Every child was started: from now on a start that fails is a restart that failed."""
        self._starting = False

    def stop(self) -> list[Stop]:
        """End: stop every running child, right to left; nothing is started any more."""
        self.over = True
        self._tickets.clear()
        for name, status in self.status.items():
            if status is Status.RESTARTING:
                self.status[name] = Status.DOWN
        return [Stop(name) for name in reversed(self.running())]

    # -- by hand --

    def add(self, spec: ChildSpec) -> list[Start]:
        """Declare one more child, last in order. Raises: ValueError when its name is taken or it does not fit
        this supervisor."""
        if spec.name in self.children:
            raise ValueError(f"{self.spec.name!r} has a child {spec.name!r} already")
        self.spec.check(spec)
        self.children[spec.name] = spec
        self.status[spec.name] = Status.DOWN
        return [Start(spec.name)]

    def terminate(self, name: str) -> list[Stop]:
        """Stop a child and keep its declaration, unless it is temporary. Raises: ValueError without one."""
        self._known(name)
        if self.status[name] is Status.RUNNING:
            return [Stop(name)]
        if (
            self._tickets.pop(name, None) is not None
        ):  # children that were to start with it will not start any more
            for other in self._affected(name):
                if self.status[other] is Status.RESTARTING and other not in self._tickets:
                    self.status[other] = Status.DOWN
        self.stopped(name)
        return []

    def restart(self, name: str) -> list[Start]:
        """Start a child that was stopped. Raises: ValueError when it is not down, or unknown."""
        self._known(name)
        self._down(name)
        return [Start(name)]

    def keep(self, name: str) -> bool:
        """From now on restart this temporary child whenever it ends; False if it has ended already."""
        if name not in self.children:
            return False
        self.children[name] = replace(self.children[name], restart=Restart.PERMANENT)
        return True

    def delete(self, name: str) -> None:
        """Forget a child that is down. Raises: ValueError when it is not, or unknown."""
        self._known(name)
        self._down(name)
        self.forget(name)

    def forget(self, name: str) -> None:
        """Forget a child as if it had never been declared."""
        self.children.pop(name, None)
        self.status.pop(name, None)
        self._in_a_row.pop(name, None)
        self._tickets.pop(name, None)

    def _known(self, name: str) -> None:
        if name not in self.children:
            raise ValueError(f"{self.spec.name!r} has no child {name!r}")

    def _down(self, name: str) -> None:
        if self.status[name] is not Status.DOWN:
            raise ValueError(f"{name!r} is {self.status[name].value}")

    # -- what happened --

    def started(self, name: str) -> None:
        """It runs."""
        self._tickets.pop(name, None)
        self.status[name] = Status.RUNNING

    def stopped(self, name: str, *, again: bool = False) -> None:
        """It was stopped by this supervisor."""
        if name in self.children:
            self.status[name] = Status.RESTARTING if again else Status.DOWN
            if self._is_temporary(name) or self.spec.strategy is Strategy.SIMPLE_ONE_FOR_ONE:
                self.forget(name)

    def start_failed(self, name: str, *, now_s: float, hopeless: bool = False) -> list[Action]:
        """It could not be started: the end of a supervisor that was just starting, else one more restart."""
        if self._starting:
            return [*self.stop(), End(EndReason.START, name, f"{name} did not start")]
        return self._restart(name, now_s, hopeless)

    def exited(self, name: str, *, abnormal: bool, now_s: float, hopeless: bool = False) -> list[Action]:
        """A child ended by itself. `hopeless`: a restart would end the same way."""
        if self.status.get(name) is not Status.RUNNING:
            return []
        restart = self.children[name].restart
        if restart is Restart.PERMANENT or (restart is Restart.TRANSIENT and abnormal):
            return self._restart(name, now_s, hopeless)
        significant = self.children[name].significant
        self.stopped(name)
        return self._auto_shutdown(name) if significant else []

    def again(self, name: str, ticket: int) -> list[Start]:
        """The delay of `RestartLater` is over."""
        if self._tickets.get(name) != ticket:
            return []  # it was stopped, or started with others, meanwhile
        running = self.running()  # started by hand meanwhile
        return [start for start in self._starts(name) if start.name not in running]

    def _auto_shutdown(self, name: str) -> list[Action]:
        left = [
            other
            for other, spec in self.children.items()
            if spec.significant and self.status[other] is not Status.DOWN
        ]
        if self.spec.auto_shutdown is AutoShutdown.ALL_SIGNIFICANT and left:
            return []
        return [*self.stop(), End(EndReason.SIGNIFICANT, name, f"its significant child {name} is done")]

    def _restart(self, name: str, now_s: float, hopeless: bool) -> list[Action]:
        self.status[name] = Status.DOWN
        if hopeless:
            text = f"{name} cannot go on here, and starting it again would not help"
            return [*self.stop(), End(EndReason.HOPELESS, name, text)]
        intensity = self.spec.intensity
        self.restarts.append(now_s)
        while now_s - self.restarts[0] > intensity.within_s:
            self.restarts.popleft()
        if len(self.restarts) > intensity.restarts:
            text = f"{name} failed again and the limit of {intensity} is reached"
            if not intensity.restarts:
                text = f"{name} failed, and here nothing is started again"
            return [*self.stop(), End(EndReason.INTENSITY, name, text)]
        affected = self._affected(name)
        for other in affected:
            self._tickets.pop(other, None)
        running = [other for other in reversed(affected) if self.status[other] is Status.RUNNING]
        stops = [Stop(other, not self._is_temporary(other)) for other in running]
        self.status[name] = Status.RESTARTING
        self._ticket += 1
        self._tickets[name] = self._ticket
        delay_s = self._backoff(name, now_s)
        if delay_s > 0:
            return [*stops, RestartLater(name, delay_s, self._ticket)]
        return [*stops, *self._starts(name)]

    def _affected(self, name: str) -> list[str]:
        names = list(self.children)
        if self.spec.strategy is Strategy.ONE_FOR_ALL:
            return names
        if self.spec.strategy is Strategy.REST_FOR_ONE:
            return names[names.index(name) :]
        return [name]

    def _starts(self, name: str) -> list[Start]:
        """All that were affected but the temporary ones; those that had ended well, or had been stopped by
        hand, start with the others."""
        return [Start(other, name) for other in self._affected(name) if not self._is_temporary(other)]

    def _is_temporary(self, name: str) -> bool:
        return self.children[name].restart is Restart.TEMPORARY

    def _backoff(self, name: str, now_s: float) -> float:
        count, last = self._in_a_row.get(name, (0, now_s))
        if now_s - last > self.spec.intensity.within_s:
            count = 0
        self._in_a_row[name] = (count + 1, now_s)
        if count == 0:
            return 0.0
        delay_s: float = min(self.spec.intensity.backoff_s * 2.0 ** (count - 1), MAX_BACKOFF_S)
        return delay_s * self._rng.uniform(0.5, 1.0)
