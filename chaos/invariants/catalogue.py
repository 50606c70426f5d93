"""Jury: all checks of a simulated run, in order.

Owns the list. A new check is written in a module of its own or beside a similar one, and entered in
`jury_of`.
"""

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from gleaner.actors.names import MANAGER
from gleaner.actors.rollout.dispatch.placement import MOST_SPEED
from gleaner.chaos.invariants.check import Check, Found
from gleaner.chaos.invariants.conservation import WorkConserved
from gleaner.chaos.invariants.contents import CONTENTS, content_checks
from gleaner.chaos.invariants.drained_hosts import DrainedHosts
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed, RunEnd
from gleaner.chaos.invariants.failed_versions import GivenUpRightly
from gleaner.chaos.invariants.fences import OldIncarnationsSilent
from gleaner.chaos.invariants.frozen_processes import HungIsEnded, NoInventedDeath
from gleaner.chaos.invariants.gateway_answers import GatewayAnswers
from gleaner.chaos.invariants.gateway_requests import GatewayRequests
from gleaner.chaos.invariants.gateway_times import GatewayTimes
from gleaner.chaos.invariants.links import OnceAndInOrder
from gleaner.chaos.invariants.operator_commands import CommandsAnswered
from gleaner.chaos.invariants.progress import EveryStepEnds, NoSilentWait, NoStrayFailure, NothingGrows
from gleaner.chaos.invariants.rewards import RewardsOnce
from gleaner.chaos.invariants.samples import EachRequestOnce, NothingLostOrTwice, OnPolicy, ResponseOf
from gleaner.chaos.invariants.seeding import SeedingEnds
from gleaner.chaos.invariants.shadow import Shadow
from gleaner.chaos.invariants.single_requests import SingleRequests
from gleaner.chaos.invariants.steps import EachStepOnce, ServedIsPublished
from gleaner.chaos.invariants.truth import Truth
from gleaner.chaos.invariants.world_checks import WORLD_CHECKS, world_checks
from gleaner.configs.schema import Config
from gleaner.rlctl.audit.invariants import Evidence
from gleaner.supervisor import Message

CHECKS: tuple[type[Check], ...] = (
    EachRequestOnce, NothingLostOrTwice, OnPolicy, OldIncarnationsSilent, EachStepOnce, ServedIsPublished,
    RewardsOnce, EveryStepEnds, NothingGrows, NoSilentWait, NoStrayFailure, OnceAndInOrder,
    HungIsEnded, NoInventedDeath, SingleRequests, GatewayAnswers, GatewayTimes, GivenUpRightly,
    WorkConserved, SeedingEnds, CommandsAnswered, DrainedHosts, *CONTENTS, *WORLD_CHECKS,
)  # fmt: skip
Kind = tuple[type[Fact], type[Message] | None]
"""Type of a fact, and of its message or its one event."""
MAX_FOUND = 50
"""Violations kept of one run; later ones mostly follow from the first."""


class Jury:
    """Watches one run. `found` has the violations, in the order of detection."""

    def __init__(self, checks: Iterable[Check], shadow: Shadow) -> None:
        self.found: list[Found] = []
        self._checks = tuple(checks)
        self._seeing: dict[Kind, list[Check]] = {}
        self._shadow = shadow
        self.on_fact: Callable[[Fact], None] | None = None
        """Called with every fact before the checks see it: for a story of the run."""
        self.on_found: Callable[[Found], None] | None = None
        """Called with each violation, when it is found."""

    def see(self, fact: Fact) -> None:
        """Take a fact. The checks get a commit while the shadow still has the state before it (a release
        forgets state); then the shadow applies it, event by event."""
        if self.on_fact is not None:
            self.on_fact(fact)
        if isinstance(fact, Committed) and fact.stream == MANAGER:
            for message in () if fact.snapshot else fact.messages:
                self._shown(fact if len(fact.messages) == 1 else replace(fact, messages=(message,)))
                for name, text in self._shadow.apply(message):
                    self._add(name, fact.at_s, text)
            if fact.snapshot:
                self._shown(replace(fact, messages=()))  # a snapshot repeats the events before it
            return
        self._shown(fact)

    def close(self, evidence: Evidence, ending: RunEnd) -> list[Found]:
        """The run is over; return all violations. Standstills come first, because missing results of a job
        that did not end follow from them."""
        for check in sorted(self._checks, key=lambda it: it.name != EveryStepEnds.name):
            for text in check.end(evidence, ending):
                self._add(check.name, ending.virtual_s, text)
        return self.found

    def _shown(self, fact: Fact) -> None:
        kind: Kind = type(fact), None
        if isinstance(fact, MessagePassed):
            kind = MessagePassed, type(fact.message)
        elif isinstance(fact, Committed) and len(fact.messages) == 1:
            kind = Committed, type(fact.messages[0])
        seeing = self._seeing.get(kind)
        if seeing is None:
            seeing = self._seeing[kind] = [check for check in self._checks if check.wants(fact)]
        for check in seeing:
            for text in check.see(fact):
                self._add(check.name, fact.at_s, text)

    def _add(self, name: str, at_s: float, text: str) -> None:
        if len(self.found) < MAX_FOUND:
            self.found.append(Found(name, at_s, text))
            if self.on_found is not None:
                self.on_found(self.found[-1])


def jury_of(
    response_of: ResponseOf | None,
    staleness: int = 0,
    problems: int | None = None,
    max_pending: int = 4,
    truth: Truth | None = None,
    config: Config | None = None,
) -> Jury:
    """A jury with every check. response_of: see `samples`; None leaves the content of tokens unchecked.
    staleness: the bound of the job, in versions; problems: of its training split, None leaves their turns
    unchecked; max_pending: Θ; truth: None leaves all contents but tokens unchecked; config: other settings of
    the job, None: the defaults."""
    shadow = Shadow()
    singles: tuple[Check, ...] = (SingleRequests(shadow, response_of),)
    if config is not None and config.gateway.listen:
        requests = GatewayRequests(shadow)  # its clients are the only ones
        limit = config.gateway.max_concurrent
        singles = GatewayAnswers(requests, truth), GatewayTimes(requests, limit)
    return Jury(
        (
            EachRequestOnce(shadow, response_of, problems),
            NothingLostOrTwice(shadow),
            OnPolicy(shadow, staleness),
            OldIncarnationsSilent(),
            EachStepOnce(),
            ServedIsPublished(),
            RewardsOnce(shadow),
            EveryStepEnds(),
            NothingGrows(),
            NoSilentWait(),
            NoStrayFailure(),
            OnceAndInOrder(),
            HungIsEnded(),
            NoInventedDeath(),
            *singles,
            GivenUpRightly(),
            WorkConserved(shadow, max_pending, MOST_SPEED),
            SeedingEnds(),
            CommandsAnswered(),
            DrainedHosts(),
            *content_checks(shadow, truth),
            *world_checks(shadow, config or Config()),
        ),
        shadow,
    )


def explanation(name: str) -> str:
    """What a check means, for a person who sees it fail."""
    return next((check.explained() for check in CHECKS if check.name == name), name)
