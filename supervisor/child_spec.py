"""ChildSpec and TreeSpec: declaration of a supervision tree, as in OTP.

They hold children, restart types, strategies and intensity (OTP `supervisor`: child specification and
supervisor flags). Values only: `tree` decides what follows from them, `supervision` carries it out.
"""

import enum
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from gleaner.supervisor.actor import Actor
from gleaner.supervisor.process import ProcessSpec

BRUTAL_KILL = 0.0
"""`shutdown_s`: ended at once, without `on_stop` or SIGTERM."""
INFINITY = math.inf
"""`shutdown_s`: without limit; the default of subtrees, whose own children have their times."""
WORKER_SHUTDOWN_S = 5.0  # OTP's default for workers

Factory = Callable[..., Actor]


class Strategy(enum.Enum):
    """Choice of the children that are restarted when one fails."""

    ONE_FOR_ONE = "one_for_one"  # that child alone
    ONE_FOR_ALL = "one_for_all"  # all of them
    REST_FOR_ONE = "rest_for_one"  # that child and those declared after it
    SIMPLE_ONE_FOR_ONE = "simple_one_for_one"  # that one of many instances of one template


class Restart(enum.Enum):
    """When a child is restarted."""

    PERMANENT = "permanent"  # always
    TRANSIENT = "transient"  # after an abnormal end only
    TEMPORARY = "temporary"  # never, not even when the failure of a sibling ended it


class Waiting(enum.Enum):
    """Treatment of an actor's waiting messages when it is restarted."""

    DROP = "drop"  # asks fail with `Unreachable`; an ask by name is repeated
    KEEP = "keep"  # the next life gets them, in order; for an actor whose state survives it


class AutoShutdown(enum.Enum):
    """Whether a supervisor ends, in order, when significant children have ended by themselves for good."""

    NEVER = "never"
    ANY_SIGNIFICANT = "any_significant"
    ALL_SIGNIFICANT = "all_significant"  # with the last of them


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

    def __str__(self) -> str:
        return f"{self.restarts} restarts in {self.within_s:g} s"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A child: what to start and how to treat its end. `significant`: its end may end the supervisor, see
    `AutoShutdown`; `mailbox`: of an actor."""

    name: str
    start: "Factory | ProcessSpec | TreeSpec"
    restart: Restart = Restart.PERMANENT
    shutdown_s: float = WORKER_SHUTDOWN_S  # an ordered stop takes at most this long, then kill
    significant: bool = False
    mailbox: Waiting = Waiting.DROP

    @property
    def is_tree(self) -> bool:
        """Whether it is a supervisor."""
        return isinstance(self.start, TreeSpec)

    def instance(self, name: str, arguments: Iterable[object]) -> "ChildSpec":
        """This template as the child `name`: `arguments` are appended to the arguments of the factory or of
        the command line."""
        given = tuple(arguments)
        start = self.start
        if isinstance(start, ProcessSpec):
            output = start.output.with_name(f"{name.replace('/', '-')}.out")
            argv = [*start.argv, *map(str, given)]
            return replace(self, name=name, start=replace(start, argv=argv, output=output))
        if isinstance(start, TreeSpec):
            if given:
                raise ValueError(f"{name!r}: a subtree takes no arguments")
            return replace(self, name=name, start=replace(start, name=name))
        factory = start
        return replace(self, name=name, start=lambda: factory(*given))


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """A supervisor and its children, in the order in which they start.

    Raises: ValueError for what OTP refuses too: two children of one name, a significant child that is
    permanent or whose supervisor never shuts itself down, a pool without exactly one template.
    """

    name: str
    strategy: Strategy
    children: tuple[ChildSpec, ...]
    intensity: Intensity = field(default_factory=Intensity)
    auto_shutdown: AutoShutdown = AutoShutdown.NEVER

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.children]
        doubled = {name for name in names if names.count(name) > 1}
        if doubled:
            raise ValueError(f"supervisor {self.name!r}: children share the name {sorted(doubled)}")
        if self.strategy is Strategy.SIMPLE_ONE_FOR_ONE:
            if len(self.children) != 1:
                raise ValueError(f"supervisor {self.name!r}: a pool has one template")
            if self.auto_shutdown is not AutoShutdown.NEVER:
                raise ValueError(f"supervisor {self.name!r}: a pool does not shut itself down")
        for spec in self.children:
            self.check(spec)

    def check(self, spec: ChildSpec) -> None:
        """Raises ValueError where `spec` cannot be a child of this supervisor."""
        if spec.significant and spec.restart is Restart.PERMANENT:
            raise ValueError(f"{spec.name!r}: a significant child is transient or temporary")
        if spec.significant and self.auto_shutdown is AutoShutdown.NEVER:
            raise ValueError(f"{spec.name!r} is significant, but {self.name!r} never shuts itself down")
        if spec.shutdown_s < 0:
            raise ValueError(f"{spec.name!r}: shutdown_s {spec.shutdown_s:g} is negative")
        if spec.mailbox is Waiting.KEEP and not callable(spec.start):
            raise ValueError(f"{spec.name!r}: only an actor has a mailbox to keep")


def child(
    name: str,
    start: Factory | ProcessSpec | TreeSpec,
    *,
    restart: str = "permanent",
    shutdown_s: float | None = None,
    significant: bool = False,
    mailbox: str = "drop",
) -> ChildSpec:
    """Declare a child: an actor factory, a process or a subtree. `shutdown_s`: `BRUTAL_KILL`, seconds or
    `INFINITY`; None: 5 s, and `INFINITY` for a subtree. `mailbox`: `keep` passes an actor's waiting messages
    to its next life, see `Waiting`."""
    if shutdown_s is None:
        shutdown_s = INFINITY if isinstance(start, TreeSpec) else WORKER_SHUTDOWN_S
    return ChildSpec(name, start, Restart(restart), shutdown_s, significant, Waiting(mailbox))


def one_for_one(
    *children: ChildSpec, name: str = "root", intensity: Intensity | None = None, auto_shutdown: str = "never"
) -> TreeSpec:
    """Children that fail independently."""
    return _tree(Strategy.ONE_FOR_ONE, children, name, intensity, auto_shutdown)


def one_for_all(
    *children: ChildSpec, name: str = "root", intensity: Intensity | None = None, auto_shutdown: str = "never"
) -> TreeSpec:
    """Children that cannot live without each other (a gang of trainer processes)."""
    return _tree(Strategy.ONE_FOR_ALL, children, name, intensity, auto_shutdown)


def rest_for_one(
    *children: ChildSpec, name: str = "root", intensity: Intensity | None = None, auto_shutdown: str = "never"
) -> TreeSpec:
    """Children of which the later ones depend on the earlier ones."""
    return _tree(Strategy.REST_FOR_ONE, children, name, intensity, auto_shutdown)


def simple_one_for_one(
    template: ChildSpec, *, name: str = "root", intensity: Intensity | None = None
) -> TreeSpec:
    """A pool: starts empty; `Supervisor.add_instance` adds children, all made from `template`."""
    return _tree(Strategy.SIMPLE_ONE_FOR_ONE, (template,), name, intensity, "never")


def _tree(
    strategy: Strategy,
    children: tuple[ChildSpec, ...],
    name: str,
    intensity: Intensity | None,
    auto_shutdown: str,
) -> TreeSpec:
    return TreeSpec(name, strategy, children, intensity or Intensity(), AutoShutdown(auto_shutdown))
