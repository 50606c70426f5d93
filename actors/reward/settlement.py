"""Settlement: what follows from the result of a reward item: its verdict, its next stage, or another try.

Owns the futures of open items, their verdicts, and what their stages left. `ItemDispatch` has checked that
the host was given the item.

- A verdict is settled once. A second result, of an attempt that was given up, is dropped and counted.
- An item with a result of ours (`verdicts.OURS`) is tried again where there are several hosts, `attempts`
  times: on another one if that has a free worker.
- An item that has passed a stage waits in the next one. If what the stage left is gone, it begins again.
- A job that is sick gets no verdict of a worker for what is open, and its workers are free for others.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from gleaner.actors.reward.assignment.assignment import Assignment
from gleaner.actors.reward.assignment.open_items import NOWHERE, RewardItem
from gleaner.actors.reward.assignment.passed_stages import PassedStages, StagePassed
from gleaner.actors.reward.host_link import HostLink
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.verdict_cache import VerdictCache
from gleaner.actors.reward.verdicts import BLOB_LOST, LOST, OURS, PASSED, VERIFIER_FAILED

NO_SCORE = OURS | {BLOB_LOST}
MOST_LOSSES = 3
"""Hosts that may be lost with one item: then it may be the cause."""


class Settlement:
    """See the module. After each call that frees workers, or has items wait, its caller gives items.

    Args:
        stages: of items, by name.
        attempts: tries of an item whose results are failures of ours, each on a host.
        tables: that results change.
        links: to the hosts, by name; its caller's own.
    """

    def __init__(
        self,
        stages: Sequence[str],
        attempts: int,
        tables: Assignment,
        links: Mapping[str, HostLink],
    ) -> None:
        self._stages, self._attempts = frozenset(stages), attempts
        self._jobs, self._batches, self._announced = tables.jobs, tables.batches, tables.announced
        self._items, self._hosts, self._links = tables.items, tables.hosts, links
        self.verdicts = VerdictCache()
        self.passed = PassedStages()
        self.counts: Counter[str] = Counter()
        """Results of ours that are tried elsewhere, results that came too late, items that began again, jobs
        that became sick."""
        self.on_verdict: Callable[[RewardItem, Verdict], None] = _nothing
        """Called with each item that got its first verdict from a worker, when there is a request for it."""
        self.on_passed: Callable[[RewardItem], None] = _passed
        """Called with each item that has passed a stage."""
        self._done: dict[str, asyncio.Future[Verdict]] = {}

    # -- requests --

    def known(self, item: RewardItem) -> asyncio.Future[Verdict] | None:
        """The verdict of an open item of the same id, or one that is there before its request; else None."""
        if (open_ := self._done.get(item.id)) is not None:
            return open_
        if (stray := self.verdicts.claim(item.batch, item.id)) is not None:
            verdict, of, took_s = stray
            item.spent_s[of] = took_s
            self.on_verdict(item, verdict)  # from here on it belongs to a batch, and can be recorded
        if (known := self.verdicts.get(item.batch, item.id)) is None:
            return None
        done: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        done.set_result(known)
        return done

    def opened(self, item: RewardItem) -> asyncio.Future[Verdict]:
        """The verdict of an item that is open from now on, when it is there."""
        done: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._done[item.id] = done
        return done

    def dropped(self, item: RewardItem) -> None:
        """The verdict of this item is not needed."""
        if (done := self._done.pop(item.id, None)) is not None:
            done.cancel()

    def forget(self, batch: str) -> None:
        """No verdict of this batch is requested any more."""
        self.verdicts.forget(batch)
        self.passed.forget(batch)

    def fail(self, problem: Exception) -> None:
        """End every open item with this error."""
        for done in self._done.values():
            if not done.done():
                done.set_exception(problem)
        self._done.clear()

    # -- results --

    def take(
        self, host: str, item_id: str, stage: str, verdict: Verdict, took_s: float, attempt: int
    ) -> bool:
        """A host has the result of an attempt of an item. Whether that frees workers, or has items wait."""
        item = self._items.get(item_id)
        if item is None and not self.verdicts.has(item_id):  # its request comes later: this service is new
            self._keep(host, item_id, stage, verdict, took_s)
            return False
        if item is None or (item.stage != stage and not item.is_behind(stage)):
            self.counts["late_results"] += 1
            return False
        if verdict.status in NO_SCORE and item.stage != stage:
            self.counts["late_results"] += 1  # of an earlier life of this service, and of no use
            return False
        if verdict.status == BLOB_LOST:
            self._begin_again(item, host, attempt)
            return True
        if verdict.status == PASSED:
            self._pass_on(item, host, stage, verdict, took_s, attempt)
            return True
        if verdict.status in OURS and (item.host != host or attempt < item.attempts):
            self.counts["late_results"] += 1  # it runs elsewhere, or once more, by now
            return False
        holder = item.host
        self._hosts.release(holder, item.stage)
        if verdict.status not in OURS:  # a failure of ours says nothing of how long an item takes
            self._hosts.took(stage, took_s)
        if not (verdict.status in OURS and self._tried_again(item, host, attempt)):
            if holder and holder != host:
                self._links[holder].cancel([item_id])
            item.spent_s[stage] = took_s
            if verdict.status not in OURS:
                self._jobs.worked(item.job, stage, took_s)
                self._jobs.scored(item.job)
            self._items.end(item)  # also one that waits: its host was given up, and answered after all
            self._batches.scored(item)
            self._settle(item, verdict)
            if verdict.status == LOST:
                self._lost(item.job, verdict.detail)
        return True

    def lost_with_hosts(self, item: RewardItem) -> None:
        """So many hosts were lost with this item that it is lost."""
        self._items.end(item)
        text = f"the hosts that scored it were lost, {item.losses} times"
        self._settle(item, Verdict(None, LOST, text))
        self._lost(item.job, text)

    def _keep(self, host: str, item_id: str, stage: str, verdict: Verdict, took_s: float) -> None:
        """The result of an item that is not requested yet, for its request."""
        self._end_announced(host, item_id, stage, verdict)
        if verdict.status not in NO_SCORE and stage in self._stages:
            self._hosts.took(stage, took_s)
        if verdict.status == PASSED:
            self.passed.keep("", item_id, StagePassed(stage, verdict.carried, host))
        elif verdict.status not in NO_SCORE:
            self.verdicts.keep_stray(item_id, verdict, stage, took_s)

    def _end_announced(self, host: str, item_id: str, stage: str, verdict: Verdict) -> None:
        """It runs nowhere any more: a host that has it, and gets no further than this result, ends it."""
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

    def _tried_again(self, item: RewardItem, host: str, attempt: int) -> bool:
        """Whether the item waits again after a failure of ours on a host: another one may score it. No
        attempt has the number of an earlier one, also not of one that an earlier service counted."""
        item.attempts = attempt + 1
        item.failed_on = host
        if item.attempts - item.begun_at >= self._attempts or len(self._hosts) < 2:
            return False
        self.counts["tried_elsewhere"] += 1
        self._items.back(item)
        return True

    def _pass_on(
        self, item: RewardItem, host: str, stage: str, verdict: Verdict, took_s: float, attempt: int
    ) -> None:
        """The item has passed its stage on a host, and waits in the next one."""
        self._hosts.release(item.host, item.stage)
        self._hosts.took(stage, took_s)
        if item.host and item.host != host:  # the other one was given up, and answered after all
            self._links[item.host].cancel([item.id], {item.id: item.attempts})
        self._jobs.worked(item.job, stage, took_s)
        item.spent_s[stage] = took_s
        passed = StagePassed(stage, verdict.carried, host)
        self.passed.keep(item.batch, item.id, passed)
        item.attempts = item.begun_at = max(item.attempts, attempt + 1)
        item.failed_on = NOWHERE
        to = passed.apply(item)
        if to:
            self._items.move(item, to)
            self.on_passed(item)
        else:  # its pipeline ends here: this is no score
            self._items.end(item)
            self._settle(item, Verdict(None, VERIFIER_FAILED, f"{host} passed it on from its last stage"))

    def _begin_again(self, item: RewardItem, host: str, attempt: int) -> None:
        """What a stage left is gone: the item begins again, as often as its hosts may be lost."""
        if item.host != host or attempt < item.attempts:
            self.counts["late_results"] += 1
            return
        self._hosts.release(host, item.stage)
        self.passed.drop(item.id)
        item.losses += 1
        item.attempts = item.begun_at = attempt + 1
        if item.losses >= MOST_LOSSES:
            self._items.end(item)
            self._settle(item, Verdict(None, LOST, f"what its stages left was lost, {item.losses} times"))
            return
        self.counts["begun_again"] += 1
        item.carried, item.made_on = b"", NOWHERE
        self._items.move(item, item.pipeline[0])

    def _lost(self, job: str, text: str) -> None:
        """An item of this job was lost with its workers. If the job is sick, its open items get none any
        more."""
        if not self._jobs.lost(job, asyncio.get_running_loop().time()):
            return
        self.counts["sick_jobs"] += 1
        verdict = Verdict(None, LOST, f"job {job} is stopped for a while, its items end workers: {text}")
        running: dict[str, list[str]] = {}
        for item in [item for item in self._items if item.job == job]:
            if item.host:
                running.setdefault(item.host, []).append(item.id)
            self._hosts.release(item.host, item.stage)
            self._items.end(item)
            self._settle(item, verdict)
        for host, items in running.items():
            if (link := self._links.get(host)) is not None:
                link.cancel(items)

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
