"""Supervision as a pure state machine: exits go in, stops and starts come out (OTP `supervisor`, design
principles).

Owns strategies, restart types and intensity. Starts nothing itself: `supervision.Supervisor` carries the
actions out.
"""

import enum
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from supervisor.actor import Actor
from supervisor.process import ProcessSpec

MAX_BACKOFF_S = 10.0


class Strategy(enum.Enum):
    """Which children are restarted when one fails."""

    ONE_FOR_ONE = "one_for_one"  # that child alone
    ONE_FOR_ALL = "one_for_all"  # all of them
    REST_FOR_ONE = "rest_for_one"  # that child and those started after it


class Restart(enum.Enum):
    """When a child is restarted."""

    PERMANENT = "permanent"  # always
    TRANSIENT = "transient"  # after an abnormal end only
    TEMPORARY = "temporary"  # never


@dataclass(frozen=True, slots=True)
class Intensity:
    """At most `restarts` within `within_s`; one more and the supervisor itself fails (OTP's default is 1 in
    5 s).

    `backoff_s` is the delay before the second restart in a row of one child; it doubles, with jitter, and is
    forgotten after `within_s` without a failure. The first restart is immediate.
    """

    restarts: int = 3
    within_s: float = 10.0
    backoff_s: float = 0.1


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A child: what to start and how to treat its end."""

    name: str
    start: "Callable[[], Actor] | ProcessSpec | TreeSpec"
    restart: Restart = Restart.PERMANENT
    shutdown_s: float = 5.0  # an ordered stop takes at most this long, then kill


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """A supervisor and its children, in the order in which they start."""

    name: str
    strategy: Strategy
    children: tuple[ChildSpec, ...]
    intensity: Intensity = field(default_factory=Intensity)


def child(
    name: str,
    start: "Callable[[], Actor] | ProcessSpec | TreeSpec",
    *,
    restart: str = "permanent",
    shutdown_s: float = 5.0,
) -> ChildSpec:
    """Declare a child: an actor factory, a process or a subtree."""
    return ChildSpec(name, start, Restart(restart), shutdown_s)


def _tree(
    strategy: Strategy, children: Sequence[ChildSpec], name: str, intensity: Intensity | None
) -> TreeSpec:
    names = [spec.name for spec in children]
    doubled = {child_name for child_name in names if names.count(child_name) > 1}
    if doubled:
        raise ValueError(f"supervisor {name!r}: children share the name {sorted(doubled)}")
    return TreeSpec(name, strategy, tuple(children), intensity or Intensity())


def one_for_one(*children: ChildSpec, name: str = "root", intensity: Intensity | None = None) -> TreeSpec:
    """Children that fail alone."""
    return _tree(Strategy.ONE_FOR_ONE, children, name, intensity)


def one_for_all(*children: ChildSpec, name: str = "root", intensity: Intensity | None = None) -> TreeSpec:
    """Children that cannot live without each other (a gang of trainer processes)."""
    return _tree(Strategy.ONE_FOR_ALL, children, name, intensity)


def rest_for_one(*children: ChildSpec, name: str = "root", intensity: Intensity | None = None) -> TreeSpec:
    """Children of which the later ones depend on the earlier ones."""
    return _tree(Strategy.REST_FOR_ONE, children, name, intensity)


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop this child, in order."""

    name: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start this child after `delay_s`."""

    name: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class Escalate:
    """The intensity is spent: stop everything and fail upward."""

    reason: str


Action = Stop | Start | Escalate


class TreeState:
    """What one supervisor remembers: its children in order, who runs, and the failures within the window.

    Args:
        spec: the supervisor.
        rng: source of jitter, injected.
    """

    def __init__(self, spec: TreeSpec, rng: random.Random) -> None:
        self.intensity = spec.intensity
        self.strategy = spec.strategy
        self.children: dict[str, ChildSpec] = {spec_.name: spec_ for spec_ in spec.children}
        self.running: set[str] = set()
        self._failures: deque[float] = deque()
        self._in_a_row: dict[str, tuple[int, float]] = {}
        self._rng = rng

    def add(self, spec: ChildSpec) -> None:
        """A child declared at run time, last in order. Raises: ValueError when the name is taken."""
        if spec.name in self.children:
            raise ValueError(f"a child {spec.name!r} is there already")
        self.children[spec.name] = spec

    def remove(self, name: str) -> None:
        """Forget a child that was stopped on purpose."""
        self.children.pop(name, None)
        self.running.discard(name)
        self._in_a_row.pop(name, None)

    def started(self, name: str) -> None:
        """It runs."""
        self.running.add(name)

    def stopped(self, name: str) -> None:
        """It was stopped on purpose by this supervisor."""
        self.running.discard(name)

    def exited(self, name: str, *, abnormal: bool, now_s: float, hopeless: bool = False) -> list[Action]:
        """A child ended by itself: what to do, in order. `hopeless`: a restart would end the same way."""
        spec = self.children.get(name)
        self.running.discard(name)
        if spec is None:
            return []
        if spec.restart is Restart.TEMPORARY or (spec.restart is Restart.TRANSIENT and not abnormal):
            if spec.restart is Restart.TEMPORARY:
                self.remove(name)
            return []
        if hopeless:
            return [Escalate(f"{name} cannot go on, and starting it again would not help")]
        self._failures.append(now_s)
        while self._failures and now_s - self._failures[0] > self.intensity.within_s:
            self._failures.popleft()
        if len(self._failures) > self.intensity.restarts:
            limit = f"{self.intensity.restarts} restarts in {self.intensity.within_s:g} s"
            return [Escalate(f"{name} failed again and the limit of {limit} is reached")]
        delay_s = self._backoff(name, now_s)
        affected = self._affected(name)
        stops: list[Action] = [Stop(other) for other in reversed(affected) if other in self.running]
        starts: list[Action] = [Start(other, delay_s if other == name else 0.0) for other in affected]
        return [*stops, *starts]

    def _affected(self, name: str) -> list[str]:
        names = list(self.children)
        if self.strategy is Strategy.ONE_FOR_ONE:
            return [name]
        if self.strategy is Strategy.REST_FOR_ONE:
            names = names[names.index(name) :]
        # temporary siblings are stopped with the rest and never come back
        return [n for n in names if n == name or n in self.running or self._restartable(n)]

    def _restartable(self, name: str) -> bool:
        return self.children[name].restart is Restart.PERMANENT

    def _backoff(self, name: str, now_s: float) -> float:
        count, last = self._in_a_row.get(name, (0, now_s))
        if now_s - last > self.intensity.within_s:
            count = 0
        self._in_a_row[name] = (count + 1, now_s)
        if count == 0:
            return 0.0
        delay_s: float = min(self.intensity.backoff_s * 2.0 ** (count - 1), MAX_BACKOFF_S)
        return delay_s * self._rng.uniform(0.5, 1.0)
