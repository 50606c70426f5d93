"""Nemesis: injects faults one by one, each after the recovery from the last.

Owns the order: a sound cluster, an injection, the mending, the recovery or its deadline, a pause. `plan`
chooses the faults, `fault_injector` injects them, `recovery` decides when a cluster is sound. Time is seconds
since the campaign began.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import psutil

from gleaner.chaos.netns import NoNamespaces
from gleaner.chaos.real.active_fault import ActiveFault, Evidence, NoEffect
from gleaner.chaos.real.bad_wires import NoBadWire
from gleaner.chaos.real.campaign import Campaign
from gleaner.chaos.real.cluster import HEAD, Cluster
from gleaner.chaos.real.fault_injector import FaultInjector
from gleaner.chaos.real.faults import AnyRealFault, kind_of, struck_at, words
from gleaner.chaos.real.health_recorder import HealthRecord
from gleaner.chaos.real.health_recording import HealthRecording
from gleaner.chaos.real.images import strange_images
from gleaner.chaos.real.job import Jobs
from gleaner.chaos.real.plan import Plan
from gleaner.chaos.real.recovery import ClusterObservation, SoundCluster, absent, missing

POLL_S = 0.2
FIRST_SOUND_S = 180.0  # until the first job has its hosts and finished a step: a dozen processes load torch
SOUND_S = 180.0  # the same between jobs
END_S = 600.0  # for the last job to make its last steps and close its records
MAX_VIOLATIONS = 20
"""A campaign with more violations stops, because it has shown enough."""


class Ended(Exception):
    """The campaign cannot go on; the text gives the cause."""


@dataclass(slots=True)
class FaultOutcome:
    """Result of a fault. Times are of the campaign.

    missed: why it had no effect. mended_s: when its effect was removed. back_s, recovered_s: seconds from
    then until every process was there, and until the cluster was well. lacking: what was not well at the
    deadline.
    """

    fault: AnyRealFault
    began_s: float
    mended_s: float | None = None
    back_s: float | None = None
    recovered_s: float | None = None
    missed: str = ""
    lacking: tuple[str, ...] = ()
    evidence: Evidence = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Kind of the fault."""
        return kind_of(self.fault)


@dataclass(slots=True)
class Account:
    """State of a campaign so far. `doing`: now, for people. `pace`: (time, tokens so far)."""

    struck: list[FaultOutcome] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    doing: str = "starting"
    lacking: tuple[str, ...] = ()
    seen: ClusterObservation = field(default_factory=ClusterObservation)
    pace: list[tuple[float, int]] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)


class Nemesis:
    """See the module.

    Args:
        tell: called with the account at every change, and at every poll (a few a second).
    """

    def __init__(
        self, cluster: Cluster, jobs: Jobs, campaign: Campaign, seed: int, tell: Callable[[Account], None]
    ) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._campaign = campaign
        self._plan = Plan(campaign, seed, cluster.spots)
        self._breaker = FaultInjector(cluster, lambda: self.account.seen.steps, seed)
        self._tell = tell
        self._witness = HealthRecording(cluster)
        self._reported: set[str] = set()
        self._began = time.monotonic()
        gateway = [f"{HEAD}/gateway"] if campaign.gateway else []
        self._sound = SoundCluster(
            [*gateway, *(f"{node.name}/{kind}" for node in cluster.nodes.values() for kind in node.kinds)],
            preemptible=len(cluster.spots),
        )
        self.account = Account()

    def run(self) -> None:
        """The whole campaign; the results are in `account`."""
        try:
            self._cluster.start_all()
            self._until_listening()
            self._jobs.begin()
            self._until_sound(FIRST_SOUND_S)
            for fault in self._due(self._plan.faults(self._fired)):
                self._one(fault)
            self._last_steps()
        except Ended as end:
            self.account.violations.append(str(end))
        finally:
            self._witness.close()
        self._cluster.mend()

    # -- one fault --

    def _due(self, faults: Iterator[AnyRealFault]) -> Iterator[AnyRealFault]:
        """Faults, as long as more are wanted; each only when the cluster is sound."""
        until_s = self._campaign.minutes * 60
        while self._wanted() and self._now() < until_s:
            pause_s = self._now() + self._plan.pause_s()
            self._doing("a breath")
            while self._now() < pause_s:
                self._look()
            self._until_sound(SOUND_S, self._campaign.steps_left)
            if self._now() >= until_s:
                return
            yield next(faults)

    def _fired(self) -> set[str]:
        return {one.kind for one in self.account.struck if not one.missed}

    def _wanted(self) -> bool:
        struck = sum(not one.missed for one in self.account.struck)
        return not self._campaign.faults or struck < self._campaign.faults

    def _one(self, fault: AnyRealFault) -> None:
        began_s = self._now()
        one = FaultOutcome(struck_at(fault, round(began_s, 2)), began_s)
        self.account.struck.append(one)
        self._doing(words(one.fault))
        try:
            strike = self._breaker.strike(fault)
            self._last(strike, one)
            one.evidence = strike.mend()
        except NoEffect as why:
            one.missed = str(why)
            self._doing(f"missed: {why}")
            return
        except (NoNamespaces, NoBadWire, OSError, psutil.Error) as problem:
            raise Ended(f"{words(one.fault)}: this machine could not do it: {problem}") from problem
        self._recover(one, strike)

    def _last(self, strike: ActiveFault, one: FaultOutcome) -> None:
        """Wait while the fault lasts; where the campaign cannot go on, the fault is mended all the same."""
        until_s = self._now() + strike.lasts_s
        try:
            while self._now() < until_s and not strike.over():
                self._look()
        except Ended:
            with contextlib.suppress(NoEffect):
                one.evidence = strike.mend()
            raise

    def _recover(self, one: FaultOutcome, strike: ActiveFault) -> None:
        since = self._look()
        one.mended_s = since.at_s
        deadline_s = self._campaign.deadline_s(one.kind)
        self._doing(f"recovering from: {words(one.fault)}")
        while True:
            seen = self._look()
            spent_s = seen.at_s - one.mended_s
            if one.back_s is None and not absent(self._sound, seen, strike.gone):
                one.back_s = spent_s
            lacking = missing(self._sound, seen, since, strike.gone)
            self.account.lacking = tuple(lacking)
            if not lacking:
                one.recovered_s = spent_s
                self.account.lacking = ()
                if wrong := strike.wrong():
                    self._violate(f"hung process: {words(one.fault)}: {wrong}")
                break
            if spent_s > deadline_s:
                one.lacking = tuple(lacking)
                never = f"no recovery within {deadline_s:.0f} s from: {words(one.fault)}"
                self._violate(f"I8: {never}: {', '.join(lacking)}")
                break
            self._begin_next()
        self._doing("recovered")

    # -- looking --

    def _until_listening(self) -> None:
        self._doing("starting hosts")
        while not all(self._cluster.listening(name) for name in self._cluster.nodes):
            self._look()
            if self._now() > FIRST_SOUND_S:
                raise Ended(f"I8: not every node agent came up within {FIRST_SOUND_S:.0f} s")

    def _until_sound(self, within_s: float, steps_left: int = 1) -> None:
        """Wait for a complete cluster, and a job with so many steps left."""
        until_s = self._now() + within_s
        since = ClusterObservation()
        while True:
            seen = self._look()
            lacking = missing(self._sound, seen, since)
            if not lacking and seen.steps_left >= steps_left:
                self.account.lacking = ()
                return
            if not lacking:  # this job is nearly done: the next one must show progress from now on
                self._doing("waiting for the next job")
                since = seen
            self.account.lacking = tuple(lacking)
            if self._now() > until_s:
                raise Ended(f"I8: not sound within {within_s:.0f} s: {', '.join(lacking) or 'no next job'}")
            self._begin_next()

    def _last_steps(self) -> None:
        """Wait for the running job's own end."""
        self._doing("letting the last job end")
        until_s = self._now() + END_S
        while self._jobs.now is not None:
            self._look()
            if self._now() > until_s:
                raise Ended(f"I8: the last job did not end within {END_S:.0f} s")

    def _begin_next(self) -> None:
        if self._jobs.now is None:
            self._jobs.begin()

    def _look(self) -> ClusterObservation:
        """Poll, restart, report, and rest a moment. Raises Ended where a job failed, or there are too many
        violations."""
        time.sleep(POLL_S)
        self.account.restarts += self._cluster.tend()
        progress = self._jobs.look()
        if problems := self._jobs.problems():
            raise Ended(f"I8: {problems[0]}")
        self._witness.listen()
        testimony = self._witness.newest
        procs = self._cluster.processes()
        self._weigh(testimony, {f"{proc.node}/{proc.kind}": proc.pid for proc in procs})
        seen = ClusterObservation(
            at_s=self._now(),
            processes={f"{proc.node}/{proc.kind}": proc.pid for proc in procs},
            stopped=[f"{proc.node}/{proc.kind}" for proc in procs if proc.stopped()],
            steps=progress.steps,
            tokens=progress.tokens,
            looks=progress.looks,
            serving=progress.serving,
            reserved=progress.reserved,
            preemptible=progress.preemptible,
            steps_left=progress.steps_left,
            job=self._jobs.now is not None,
            testimonies=self._witness.count,
            answers=testimony.pids,
            versions=testimony.versions,
            instances=testimony.instances,
        )
        self.account.seen = seen
        if not self.account.pace or progress.tokens != self.account.pace[-1][1]:
            self.account.pace.append((seen.at_s, progress.tokens))
        self._tell(self.account)
        return seen

    def _weigh(self, testimony: HealthRecord, pids: Mapping[str, int]) -> None:
        """Invariants of any time, from the witness's report of running processes; each violation is reported
        once."""
        present = {
            name: version
            for name, version in testimony.versions.items()
            if name in pids and testimony.pids.get(name) == pids[name]
        }
        found = [f"I6: {text}" for text in strange_images(self._cluster, present)]
        found += [f"no silent wait: {text.rpartition(',')[0]}" for text in testimony.overdue]
        for text in found:
            if text not in self._reported:
                self._reported.add(text)
                self._violate(text)

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _doing(self, what: str) -> None:
        self.account.doing = what
        self._tell(self.account)

    def _violate(self, text: str) -> None:
        self.account.violations.append(text)
        self._tell(self.account)
        if len(self.account.violations) >= MAX_VIOLATIONS:
            raise Ended("too many violations to go on")
