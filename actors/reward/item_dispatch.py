"""ItemDispatch: sends reward items to the hosts that score them, and settles their verdicts.

Owns the futures of open items, the hosts with their links, and what follows when a host is lost or a result
is a failure of ours. Order and choice are policies (`gleaner.actors.reward.assignment`).

- Only a host that was given an attempt of an item, or announced it when it joined, can settle it.
- A verdict is settled once. A second result, of an attempt that was given up, is dropped and counted.
- An item with a result of ours (`verdicts.OURS`) is tried again where there are several hosts, `attempts`
  times: on another one if that has a free worker.
- Items of a lost host wait again, in their place. One that was lost with `MOST_LOSSES` hosts is lost.
- An item that has passed a stage waits in the next one. If what the stage left is gone, it begins again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from gleaner.actors.reward.assignment.announced_items import AnnouncedItems
from gleaner.actors.reward.assignment.batches import RewardBatch, RewardBatches
from gleaner.actors.reward.assignment.hosts import ScoringHosts
from gleaner.actors.reward.assignment.jobs import JobLimits, RewardJobs
from gleaner.actors.reward.assignment.open_items import NOWHERE, OpenItems, RewardItem
from gleaner.actors.reward.assignment.passed_stages import PassedStages, StagePassed
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.verdict_cache import VerdictCache
from gleaner.actors.reward.verdicts import BLOB_LOST, LOST, OURS, PASSED, VERIFIER_FAILED

NO_SCORE = OURS | {BLOB_LOST}
MOST_LOSSES = 3
"""Hosts that may be lost with one item: then it may be the cause."""


class HostLink(Protocol):
    """The way to one host's workers. Results come back by `ItemDispatch.result`."""

    def give(self, stage: str, items: Sequence[RewardItem]) -> None:
        """Have these scored."""

    def cancel(self, items: Sequence[str], attempts: Mapping[str, int] | None = None) -> None:
        """The results of these are not needed. attempts: up to which that holds, for items that go on."""

    def resize(self, stage: str, workers: int) -> None:
        """Have so many workers of a stage."""


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
        self._attempts, self._aging_s = attempts, aging_s
        self.jobs = RewardJobs(limits)
        self.items = OpenItems(most_waiting, self.jobs, aging_s)
        self.hosts = ScoringHosts()
        self.batches = RewardBatches(self.stages, history_batches)
        self.verdicts = VerdictCache()
        self.counts: Counter[str] = Counter()
        """Items lost with a host, results of ours that are tried elsewhere, results that came too late,
        results of hosts that did not have the item, items that began again, items that waited beyond
        `aging_s`."""
        self._links: dict[str, HostLink] = {}
        self._done: dict[str, asyncio.Future[Verdict]] = {}
        self.on_verdict: Callable[[RewardItem, Verdict], None] = _nothing
        """Called with each item that got its first verdict from a worker, when there is a request for it."""
        self.on_passed: Callable[[RewardItem], None] = _passed
        """Called with each item that has passed a stage."""
        self._announced = AnnouncedItems(self.stages)
        self.passed = PassedStages()
        self._collects = False  # in `together`

    def __iter__(self) -> Iterator[RewardItem]:
        """The open items."""
        return iter(self.items)

    def submit(self, item: RewardItem) -> asyncio.Future[Verdict]:
        """The verdict of an item, when it is there; that of an open item of the same id. Raises `TooMany`,
        `JobSick`."""
        if (open_ := self._done.get(item.id)) is not None:
            return open_
        done: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        if (stray := self.verdicts.claim(item.batch, item.id)) is not None:
            verdict, of, took_s = stray
            item.spent_s[of] = took_s
            self.on_verdict(item, verdict)  # from here on it belongs to a batch, and can be recorded
        if (known := self.verdicts.get(item.batch, item.id)) is not None:
            done.set_result(known)
            return done
        self.jobs.admit(item.job, asyncio.get_running_loop().time())
        self.passed.resume(item)
        item.attempts = item.begun_at = self.items.given.next(item.id)
        self.items.add(item)
        self._done[item.id] = done
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
            self._release(item, item.host)
            if item.host:
                running.setdefault(item.host, []).append(item.id)
            if (done := self._done.pop(item.id, None)) is not None:
                done.cancel()
        for host, items in running.items():
            self._links[host].cancel(items)
        self.fill()

    def end_batch(self, batch: str) -> RewardBatch | None:
        """No verdict of this batch is requested any more. The batch, if it was known."""
        self.cancel([item.id for item in self.items if item.batch == batch])
        self.verdicts.forget(batch)
        self.passed.forget(batch)
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
        for given in self.items.running_on(name):
            if running.get(given.id, -1) < given.attempts:
                self._release(given, name)
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
                self.items.end(item)
                text = f"the hosts that scored it were lost, {item.losses} times"
                self._settle(item, Verdict(None, LOST, text))
                self._lost(item.job, text)
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
            self._release(item, name)
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
        self._take(host, item_id, stage, verdict, took_s, attempt)
        return True

    def _take(
        self, host: str, item_id: str, stage: str, verdict: Verdict, took_s: float, attempt: int
    ) -> None:
        item = self.items.get(item_id)
        if item is None and not self.verdicts.has(item_id):  # its request comes later: this service is new
            self._end_announced(host, item_id, stage, verdict)
            if verdict.status not in NO_SCORE and stage in self.stages:
                self.hosts.took(stage, took_s)
            if verdict.status == PASSED:
                self.passed.keep("", item_id, StagePassed(stage, verdict.carried, host))
            elif verdict.status not in NO_SCORE:
                self.verdicts.keep_stray(item_id, verdict, stage, took_s)
            return
        if item is None or (item.stage != stage and not item.is_behind(stage)):
            self.counts["late_results"] += 1
            return
        if verdict.status in NO_SCORE and item.stage != stage:
            self.counts["late_results"] += 1  # of an earlier life of this service, and of no use
            return
        if verdict.status == BLOB_LOST:
            self._begin_again(item, host, attempt)
            self.fill()
            return
        if verdict.status == PASSED:
            self._pass_on(item, host, stage, verdict, took_s, attempt)
            self.fill()
            return
        if verdict.status in OURS and (item.host != host or attempt < item.attempts):
            self.counts["late_results"] += 1  # it runs elsewhere, or once more, by now
            return
        holder = item.host
        self._release(item, holder)
        if verdict.status not in OURS:  # a failure of ours says nothing of how long an item takes
            self.hosts.took(stage, took_s)
        if not (verdict.status in OURS and self._tried_again(item, host, attempt)):
            if holder and holder != host:
                self._links[holder].cancel([item_id])
            item.spent_s[stage] = took_s
            if verdict.status not in OURS:
                self.jobs.worked(item.job, stage, took_s)
                self.jobs.scored(item.job)
            self.items.end(item)  # also one that waits: its host was given up, and answered after all
            self.batches.scored(item)
            self._settle(item, verdict)
            if verdict.status == LOST:
                self._lost(item.job, verdict.detail)
        self.fill()

    def _end_announced(self, host: str, item_id: str, stage: str, verdict: Verdict) -> None:
        """A result of an item that is not requested yet: a host that has it, and gets no further, ends it."""
        kept = self._announced.get(item_id)
        if kept is None:
            return
        if kept.host != host:
            if verdict.status in NO_SCORE:
                return
            if verdict.status == PASSED and self._announced.is_beyond(kept, stage):
                return
            self._links[kept.host].cancel([item_id], {item_id: kept.attempt})
        self._announced.drop(item_id)

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
                host.has[stage] = host.has.get(stage, 0) + 1
                given.setdefault((host.name, stage), []).append(item)
        for (name, stage), items in given.items():
            self._links[name].give(stage, items)

    def fail(self, problem: Exception) -> None:
        """End every open item with this error."""
        for done in self._done.values():
            if not done.done():
                done.set_exception(problem)
        self._done.clear()

    def _tried_again(self, item: RewardItem, host: str, attempt: int) -> bool:
        """Whether the item waits again after a failure of ours on a host: another one may score it. No
        attempt has the number of an earlier one, also not of one that an earlier service counted."""
        item.attempts = attempt + 1
        item.failed_on = host
        if item.attempts - item.begun_at >= self._attempts or len(self.hosts) < 2:
            return False
        self.counts["tried_elsewhere"] += 1
        self.items.back(item)
        return True

    def _pass_on(
        self, item: RewardItem, host: str, stage: str, verdict: Verdict, took_s: float, attempt: int
    ) -> None:
        """The item has passed its stage on a host, and waits in the next one."""
        self._release(item, item.host)
        self.hosts.took(stage, took_s)
        if item.host and item.host != host:  # the other one was given up, and answered after all
            self._links[item.host].cancel([item.id], {item.id: item.attempts})
        self.jobs.worked(item.job, stage, took_s)
        item.spent_s[stage] = took_s
        passed = StagePassed(stage, verdict.carried, host)
        self.passed.keep(item.batch, item.id, passed)
        item.attempts = item.begun_at = max(item.attempts, attempt + 1)
        item.failed_on = NOWHERE
        to = passed.apply(item)
        if to:
            self.items.move(item, to)
            self.on_passed(item)
        else:  # its pipeline ends here: this is no score
            self.items.end(item)
            self._settle(item, Verdict(None, VERIFIER_FAILED, f"{host} passed it on from its last stage"))

    def _begin_again(self, item: RewardItem, host: str, attempt: int) -> None:
        """What a stage left is gone: the item begins again, as often as its hosts may be lost."""
        if item.host != host or attempt < item.attempts:
            self.counts["late_results"] += 1
            return
        self._release(item, host)
        self.passed.drop(item.id)
        item.losses += 1
        item.attempts = item.begun_at = attempt + 1
        if item.losses >= MOST_LOSSES:
            self.items.end(item)
            self._settle(item, Verdict(None, LOST, f"what its stages left was lost, {item.losses} times"))
            return
        self.counts["begun_again"] += 1
        item.carried, item.made_on = b"", NOWHERE
        self.items.move(item, item.pipeline[0])

    def _lost(self, job: str, text: str) -> None:
        """An item of this job was lost with its workers. If the job is sick, its open items get none any
        more."""
        if not self.jobs.lost(job, asyncio.get_running_loop().time()):
            return
        self.counts["sick_jobs"] += 1
        verdict = Verdict(None, LOST, f"job {job} is stopped for a while, its items end workers: {text}")
        running: dict[str, list[str]] = {}
        for item in [item for item in self.items if item.job == job]:
            if item.host:
                running.setdefault(item.host, []).append(item.id)
            self._release(item, item.host)
            self.items.end(item)
            self._settle(item, verdict)
        for host, items in running.items():
            if (link := self._links.get(host)) is not None:
                link.cancel(items)

    def _runs_already(self, item: RewardItem, host: str, stage: str) -> None:
        """This host has it since before this service began. stage: "" for the first one."""
        if item.is_behind(stage):
            self.items.move(item, stage)
        now_s = asyncio.get_running_loop().time()
        self.items.place(item, host, now_s)
        there = self.hosts.get(host)
        assert there is not None
        there.has[item.stage] = there.has.get(item.stage, 0) + 1

    def _release(self, item: RewardItem, holder: str) -> None:
        """The host does not have it any more."""
        host = self.hosts.get(holder)
        if host is not None:
            host.has[item.stage] = max(0, host.has.get(item.stage, 0) - 1)

    def _settle(self, item: RewardItem, verdict: Verdict) -> None:
        self.passed.drop(item.id)
        self.verdicts.keep(item.batch, item.id, verdict)
        self.on_verdict(item, verdict)
        done = self._done.pop(item.id, None)
        if done is not None and not done.done():
            done.set_result(verdict)


def _nothing(_item: RewardItem, _verdict: Verdict) -> None:
    return None


def _passed(_item: RewardItem) -> None:
    return None
