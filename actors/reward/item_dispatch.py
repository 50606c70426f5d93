"""ItemDispatch: sends reward items to the hosts that score them.

Owns the links to the hosts, and what follows when a host joins, drains or is lost. What follows from a result
is `Settlement`'s. Order and choice are policies (`gleaner.actors.reward.assignment`).

- Only a host that was given an attempt of an item, or announced it when it joined, can settle it.
- Items of a lost host wait again, in their place. One that was lost with `MOST_LOSSES` hosts is lost.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from gleaner.actors.reward.assignment.announced_items import AnnouncedItems
from gleaner.actors.reward.assignment.assignment import Assignment
from gleaner.actors.reward.assignment.batches import RewardBatch, RewardBatches
from gleaner.actors.reward.assignment.hosts import ScoringHosts
from gleaner.actors.reward.assignment.jobs import JobLimits, RewardJobs
from gleaner.actors.reward.assignment.open_items import NOWHERE, OpenItems, RewardItem
from gleaner.actors.reward.host_link import HostLink
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.settlement import MOST_LOSSES, Settlement


class ItemDispatch:
    """See the module.

    Args:
        stages: of items, by name.
        most_waiting: items that may wait for a worker.
        attempts: tries of an item whose results are failures of ours, each on a host.
        limits: of each of several jobs that share the service.
        aging_s: after which a waiting item goes before items of batches that are complete sooner.
        history_batches: of each kind, from which the next batch is foreseen.
    """

    def __init__(
        self,
        stages: Sequence[str],
        most_waiting: int,
        attempts: int,
        limits: JobLimits | None = None,
        aging_s: float = float("inf"),
        history_batches: int = 1,
    ) -> None:
        self.stages = list(stages)
        self._aging_s = aging_s
        self.jobs = RewardJobs(limits)
        self.items = OpenItems(most_waiting, self.jobs, aging_s)
        self.hosts = ScoringHosts()
        self.batches = RewardBatches(self.stages, history_batches)
        self._announced = AnnouncedItems(self.stages)
        self._links: dict[str, HostLink] = {}
        tables = Assignment(self.jobs, self.batches, self.items, self.hosts, self._announced)
        self.settlement = Settlement(self.stages, attempts, tables, self._links)
        self.verdicts, self.passed = self.settlement.verdicts, self.settlement.passed
        self.counts = self.settlement.counts
        """Those of the settlement, and: items lost with a host, results of hosts that did not have the item,
        items that waited beyond `aging_s`."""
        self._collects = False  # in `together`

    def __iter__(self) -> Iterator[RewardItem]:
        """The open items."""
        return iter(self.items)

    def submit(self, item: RewardItem) -> asyncio.Future[Verdict]:
        """The verdict of an item, when it is there; that of an open item of the same id. Raises `TooMany`,
        `JobSick`."""
        if (known := self.settlement.known(item)) is not None:
            return known
        self.jobs.admit(item.job, asyncio.get_running_loop().time())
        self.passed.resume(item)
        item.attempts = item.begun_at = self.items.given.next(item.id)
        self.items.add(item)
        done = self.settlement.opened(item)
        self.batches.arrived(item.batch, item.arrival_s, item.job)
        if (announced := self._announced.drop(item.id)) is not None:
            self._runs_already(item, announced.host, announced.stage)
        self.fill()
        return done

    def cancel(self, ids: Iterable[str]) -> None:
        """The verdicts of these are not needed: what waits is dropped, what runs is cancelled."""
        dropped = self.items.drop(ids)
        running: dict[str, list[str]] = {}
        for item in dropped:
            self.batches.fewer(item.batch, 1)
            self.hosts.release(item.host, item.stage)
            if item.host:
                running.setdefault(item.host, []).append(item.id)
            self.settlement.dropped(item)
        for host, items in running.items():
            self._links[host].cancel(items)
        self.fill()

    def end_batch(self, batch: str) -> RewardBatch | None:
        """No verdict of this batch is requested any more. The batch, if it was known."""
        self.cancel([item.id for item in self.items if item.batch == batch])
        self.settlement.forget(batch)
        return self.batches.ended(batch)

    def join(
        self,
        name: str,
        workers: Mapping[str, int],
        link: HostLink,
        running: Mapping[str, int] | None = None,
        stages: Mapping[str, str] | None = None,
    ) -> None:
        """A host's workers are there. running: the attempts of what it has, also from an earlier life of this
        service; stages: those of them that are not in the first. Other items that it was given did not reach
        it, and wait again. What has ended here, or runs elsewhere by now, is cancelled there; of an item that
        two hosts have before it is requested, the attempt that is not kept is."""
        running, stages = running or {}, stages or {}
        self.hosts.join(name, workers)
        self._links[name] = link
        self.items.given.announced(name, running)
        self._announced.left(name)  # with what it announced before: it may have ended there since
        for given in self.items.running_on(name):
            if running.get(given.id, -1) < given.attempts:
                self.hosts.release(name, given.stage)
                self.items.back(given)
        needless: dict[str, dict[str, int]] = {}  # attempts by host and item
        for item_id, attempt in running.items():
            item, stage = self.items.get(item_id), stages.get(item_id, "")
            if item is None and (self.items.given.ended(item_id) or self.verdicts.has(item_id)):
                needless.setdefault(name, {})[item_id] = attempt
            elif item is None:
                if (other := self._announced.add(item_id, name, attempt, stage)) is not None:
                    needless.setdefault(other.host, {})[item_id] = other.attempt
            elif not item.host and attempt >= item.attempts:
                self._runs_already(item, name, stage)
            elif item.host != name:  # it was given to another one, or again, while this one was away
                needless.setdefault(name, {})[item_id] = attempt
        for host, attempts in needless.items():
            self._links[host].cancel(list(attempts), attempts)
        self.fill()

    def leave(self, name: str) -> int:
        """A host is gone: its items wait again. How many those are."""
        self.hosts.leave(name)
        self._links.pop(name, None)
        self.items.given.left(name)
        self._announced.left(name)
        lost = self.items.running_on(name)
        for item in lost:
            if not item.open:  # its job is sick since the loss of an item before it
                continue
            item.losses += 1
            self.counts["lost_with_host"] += 1
            if item.losses >= MOST_LOSSES:
                self.settlement.lost_with_hosts(item)
            else:
                self.items.back(item)
        self.fill()
        return len(lost)

    def bar(self, name: str, reason: str, *, barred: bool) -> None:
        """Whether a host gets no new items, for this reason."""
        host = self.hosts.get(name)
        if host is None:
            return
        if barred:
            host.barred.add(reason)
        else:
            host.barred.discard(reason)
            self.fill()

    def resize(self, name: str, stage: str, workers: int) -> None:
        """Have a host use so many of its workers."""
        host = self.hosts.get(name)
        if host is None or host.workers.get(stage) == workers:
            return
        host.workers[stage] = min(workers, host.most.get(stage, 0))
        self._links[name].resize(stage, host.workers[stage])
        self.fill()

    def take_back(self, name: str) -> list[RewardItem]:
        """The items of a host that drains wait again."""
        taken = self.items.running_on(name)
        for item in taken:
            self.hosts.release(name, item.stage)
            self.items.back(item)
        self.fill()
        return taken

    def result(
        self, host: str, item_id: str, stage: str, verdict: Verdict, took_s: float, *, attempt: int
    ) -> bool:
        """A host has scored an item. attempt: with which it was given. False if this host was never given
        that: then nothing changes."""
        if not self.items.gave(item_id, host, attempt):
            self.counts["foreign_results"] += 1
            return False
        if self.settlement.take(host, item_id, stage, verdict, took_s, attempt):
            self.fill()
        return True

    @contextmanager
    def together(self) -> Iterator[None]:
        """Within this context nothing is given; at its end what waits is, for all that happened in it."""
        self._collects = True
        try:
            yield
        finally:
            self._collects = False
            self.fill()

    def fill(self) -> None:
        """Give waiting items to hosts with credit."""
        if self._collects:
            return
        now_s = asyncio.get_running_loop().time()
        given: dict[tuple[str, str], list[RewardItem]] = {}
        for stage in self.stages:
            while self.items.waiting_in(stage) and (host := self.hosts.choose(stage)) is not None:
                jobs = self.jobs.next_of(
                    stage,
                    self.items.jobs_waiting_in(stage),
                    self.hosts.workers(stage),
                    self.hosts.ahead(stage),
                )
                item = self.items.next(stage, jobs, self.batches.complete_s, now_s)
                if item is None:
                    break
                if now_s - item.arrival_s > self._aging_s:
                    self.counts["aged"] += 1
                if item.failed_on != NOWHERE or item.made_on != NOWHERE:
                    host = self.hosts.choose(stage, avoided=item.failed_on, preferred=item.made_on) or host
                self.items.place(item, host.name, now_s)
                item.given.add((host.name, item.attempts))
                host.gets(stage)
                given.setdefault((host.name, stage), []).append(item)
        for (name, stage), items in given.items():
            self._links[name].give(stage, items)

    def fail(self, problem: Exception) -> None:
        """End every open item with this error."""
        self.settlement.fail(problem)

    def _runs_already(self, item: RewardItem, host: str, stage: str) -> None:
        """This host has it since before this service began. stage: "" for the first one."""
        if item.is_behind(stage):
            self.items.move(item, stage)
        now_s = asyncio.get_running_loop().time()
        self.items.place(item, host, now_s)
        self.hosts.gets(host, item.stage)
