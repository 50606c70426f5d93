"""A proxy with adaptive timeouts: real programs in the sandbox, and anchors over a restart."""

import asyncio
import logging
import random
from array import array
from pathlib import Path

import msgspec
import pytest
from programs_scorer import SPIN

from gleaner.actors.protocol.reward import Score, ScoreText, Verdict
from gleaner.actors.reward import journal
from gleaner.actors.reward.assignment.batches import RewardBatches
from gleaner.actors.reward.assignment.passed_stages import PassedStages
from gleaner.actors.reward.batch_limit import MOST_BATCHES
from gleaner.actors.reward.case_limits import CaseTimes
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.journal import AnchorRaised, RewardJournal, RewardSnapshot
from gleaner.actors.reward.proxy import RewardProxy, text_worker
from gleaner.actors.reward.sandbox.detection import NoSandbox, detect
from gleaner.actors.reward.scoring import WorkerSpec
from gleaner.actors.reward.scoring_queue import Verdict as Scored
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.timeouts import AdaptiveTimeouts
from gleaner.actors.reward.verdict_cache import VerdictCache
from gleaner.actors.reward.worker_process import WorkerProcess
from gleaner.configs.load import from_tree
from gleaner.supervisor import Actor, Journal
from gleaner.supervisor.journal.memory import MemoryJournal
from gleaner.supervisor.testing import TestSystem

HERE = Path(__file__).parent
MIN_S, MAX_S, DEADLINE_S = 0.1, 1.0, 3.0
DOUBLES = "print(2 * int(input()))"
LOOPS = "while True: pass"


def settings(audit_share: float = 0.0) -> RewardSettings:
    timeouts = {"adaptive": True, "min_s": MIN_S, "max_s": MAX_S, "audit_share": audit_share}
    return RewardSettings.of(from_tree({"reward": {"deadline_s": DEADLINE_S, "timeouts": timeouts}}, "test"))


class Job:
    """A proxy whose responses are programs."""

    def __init__(self, directory: Path) -> None:
        self.proxies: list[RewardProxy] = []
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._system = TestSystem(directory)
        self._asked = 0

    async def __aenter__(self) -> "Job":
        await self._system.__aenter__()
        self._start(audit_share=0.0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._system.__aexit__(None, None, None)

    def _start(self, audit_share: float) -> None:
        scorer = WorkerSpec(scorer="programs_scorer:make", config={"deadline_s": DEADLINE_S})

        def made() -> Actor:
            proxy = RewardProxy(settings(audit_share), str(self._directory), WorkerProcess.start, scorer)
            self.proxies.append(proxy)
            return proxy

        self._system.spawn("reward/proxy", made)

    def restart(self, audit_share: float) -> None:
        self._system.kill("reward/proxy")
        self._start(audit_share)

    async def score(self, source: str, split: str = "train") -> tuple[float | None, str]:
        self._asked += 1
        text = f"```python\n{source}\n```"
        tokens = array("I", list(text.encode())).tobytes()
        message = Score(request=f"r{self._asked}", split=split, index=7, tokens=tokens, batch="step-1")
        verdict = await self._system.ask("reward/proxy", message, Verdict, deadline_s=120)
        return verdict.score, verdict.status

    def counts(self) -> list[object]:
        shown = self.proxies[-1].summary()
        return [shown.get(name) for name in ("timeouts_cut", "timeout_would_have_passed", "anchors")]


@pytest.fixture(autouse=True)
def _worker_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parents[2]}")
    try:
        detect("auto")
    except NoSandbox as problem:
        pytest.skip(str(problem))


async def test_anchor_of_a_right_program_cuts_slower_ones_also_after_a_restart(tmp_path: Path) -> None:
    async with Job(tmp_path) as job:
        assert await job.score(SPIN.format(0.2) + DOUBLES) == (1.0, "ok"), "nothing was known yet"
        assert await job.score("print(7)") == (0.0, "ok")
        assert job.counts() == [0, 0, 1]
        assert await job.score(LOOPS) == (0.0, "timeout")
        assert job.counts() == [1, 0, 1]

        slow = SPIN.format(0.5) + DOUBLES
        assert await job.score(slow, split="heldout") == (1.0, "ok"), "held-out responses are measured"
        job.restart(audit_share=1.0)
        assert await job.score(slow) == (0.0, "timeout"), "the anchors survived"
        assert await job.score("print(7)") == (0.0, "ok"), "scored by the same worker, after the audit"
        assert job.counts() == [1, 1, 1], "it was audited, and was right"
        assert await job.score(slow) == (1.0, "ok"), "it lifted the anchors"


async def test_jobs_with_the_same_problems_share_no_anchors(tmp_path: Path) -> None:
    """Each has a proxy and a journal of its own."""
    async with Job(tmp_path / "one") as one, Job(tmp_path / "other") as other:
        assert await one.score(DOUBLES) == (1.0, "ok")
        assert (one.counts()[2], other.counts()[2]) == (1, 0)
        slow = SPIN.format(0.5) + DOUBLES
        assert await other.score(slow) == (1.0, "ok")
        assert await one.score(slow) == (0.0, "timeout"), "the anchor of the other job is none of its own"


async def test_service_of_several_jobs_learns_no_anchors(tmp_path: Path) -> None:
    """Its items are texts: a name of a problem would be one of any job."""
    timeouts = {"adaptive": True, "min_s": MIN_S, "max_s": MAX_S, "audit_share": 0.0}
    task = {"name": "doubles", "data": "none.jsonl", "verifier": "code"}
    tree = {"task": [task], "reward": {"deadline_s": DEADLINE_S, "timeouts": timeouts}}
    adaptive = RewardSettings.of(from_tree(tree, "test"))
    proxy = RewardProxy(adaptive, "", WorkerProcess.start, text_worker(adaptive))
    async with TestSystem(tmp_path) as test:
        test.spawn("reward/proxy", lambda: proxy)
        for number, job in enumerate(("math", "code")):
            entry = Entry(question="?", tests=({"input": "2\n", "output": "4\n"},))
            program = SPIN.format(0.4 * number) + DOUBLES
            ask = ScoreText(
                request=f"r{number}",
                task="doubles",
                entry=msgspec.json.encode(entry),
                response=f"```python\n{program}\n```",
                batch="step-1",
                job=job,
            )
            verdict = await test.ask("reward/proxy", ask, Verdict, deadline_s=120)
            assert (verdict.score, verdict.status) == (1.0, "ok")
        assert proxy.summary()["anchors"] == 0


class Keeper(Actor):
    """An actor with a `RewardJournal`."""

    def __init__(self) -> None:
        self.started = asyncio.Event()

    async def on_start(self) -> None:
        self.timeouts = AdaptiveTimeouts(settings().reward.timeouts, self.ctx.rng)
        self.journal = RewardJournal(
            self.ctx.journal, self.timeouts, VerdictCache(), RewardBatches(), PassedStages(), self.ctx.log
        )
        await self.journal.replay(0.0)
        self.kept = [event async for event in self.ctx.journal.replay()]
        self.started.set()

    def observe(self, time_s: float) -> None:
        raised = self.timeouts.observe("a", CaseTimes((time_s,)))
        assert raised
        self.journal.anchor_raised("a", raised)


async def test_journal_of_anchors_is_bounded_by_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LEAST_EVENTS", 5)
    async with TestSystem(tmp_path) as system:
        for first_s in (1.0, 2.0, 3.0):
            keeper = Keeper()
            system.spawn("keeper", lambda keeper=keeper: keeper)
            await asyncio.wait_for(keeper.started.wait(), 60)
            if first_s < 3:
                for number in range(12):
                    keeper.observe(first_s + number / 100)
                await keeper.ctx.journal.append(AnchorRaised(problem="b", anchors_s=(first_s,)))
                system.kill("keeper")
    assert len(keeper.kept) <= 5
    assert isinstance(keeper.kept[0], RewardSnapshot)
    assert {type(event) for event in keeper.kept[1:]} == {AnchorRaised}
    assert dict(keeper.timeouts.anchors_s()) == {"a": (2.11,), "b": (2.0,)}


async def test_journal_without_space_costs_anchors_and_no_verdict() -> None:
    store = MemoryJournal()
    timeouts = AdaptiveTimeouts(settings().reward.timeouts, random.Random(1))
    log = logging.LoggerAdapter(logging.getLogger())
    parts = VerdictCache(), RewardBatches(), PassedStages(), log
    kept = RewardJournal(Journal(store, "reward/proxy", 1), timeouts, *parts)
    await kept.replay(0.0)
    for full, problem in ((True, "a"), (False, "b")):
        store.full = full
        kept.anchor_raised(problem, (1.0,))
        for _ in range(5):  # turns of the loop, in which the commit fails or is done
            await asyncio.sleep(0)
    assert kept.failures == 1
    again = AdaptiveTimeouts(settings().reward.timeouts, random.Random(1))
    await RewardJournal(Journal(store, "reward/proxy", 2), again, *parts).replay(0.0)
    assert dict(again.anchors_s()) == {"b": (1.0,)}


async def test_journal_of_verdicts_is_bounded_when_no_batch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LEAST_EVENTS", 1)
    store = MemoryJournal()
    log = logging.LoggerAdapter(logging.getLogger())
    parts = None, VerdictCache(), RewardBatches(), PassedStages(), log
    kept = RewardJournal(Journal(store, "reward/proxy", 1), *parts)
    await kept.replay(0.0)
    for number in range(10 * MOST_BATCHES):
        kept.verdict_given(f"step-{number}", f"r{number}", Scored(1.0, "ok"))
        await asyncio.sleep(0)
    for _ in range(5):  # turns of the loop, in which the last commit is done
        await asyncio.sleep(0)
    events = [event async for event in Journal(store, "reward/proxy", 2).replay()]
    assert isinstance(events[0], RewardSnapshot)
    assert len(events[0].verdicts) == MOST_BATCHES
    assert len(events) <= 1 + MOST_BATCHES
    again = VerdictCache()
    await RewardJournal(Journal(store, "reward/proxy", 3), None, again, *parts[2:]).replay(0.0)
    assert again.get(f"step-{number}", f"r{number}") == Scored(1.0, "ok"), "the newest one survives"


@pytest.mark.parametrize("snapshots", [False, True])
async def test_journal_returns_announced_batches_until_they_end(
    monkeypatch: pytest.MonkeyPatch, snapshots: bool
) -> None:
    if snapshots:
        monkeypatch.setattr(journal, "LEAST_EVENTS", 1)
    store, batches = MemoryJournal(), RewardBatches()
    rest = PassedStages(), logging.LoggerAdapter(logging.getLogger())
    kept = RewardJournal(Journal(store, "reward/proxy", 1), None, VerdictCache(), RewardBatches(), *rest)
    await kept.replay(0.0)
    for batch, items in (("step-1", 10), ("step-2", 20), ("step-2", 20), ("eval-1", 5)):
        kept.batch_announced(batch, items)
        await asyncio.sleep(0)
    kept.batch_closed("step-1", "step", None)
    for _ in range(5):  # turns of the loop, in which the last commit is done
        await asyncio.sleep(0)
    await RewardJournal(Journal(store, "reward/proxy", 2), None, VerdictCache(), batches, *rest).replay(7.0)
    assert [(one.name, one.expected, one.origin_s) for one in batches.active()] == [
        ("step-2", 20, 7.0),
        ("eval-1", 5, 7.0),
    ]


async def test_journal_of_announced_batches_is_bounded_when_none_ends() -> None:
    rest = VerdictCache(), RewardBatches(), PassedStages(), logging.LoggerAdapter(logging.getLogger())
    kept = RewardJournal(Journal(MemoryJournal(), "reward/proxy", 1), None, *rest)
    await kept.replay(0.0)
    for number in range(3 * MOST_BATCHES):
        kept.batch_announced(f"step-{number}", 1)
        await asyncio.sleep(0)
    assert len(kept._state().announced) == MOST_BATCHES


async def test_journal_keeps_the_announced_batch_of_a_job_beside_one_with_many() -> None:
    rest = VerdictCache(), RewardBatches(), PassedStages(), logging.LoggerAdapter(logging.getLogger())
    kept = RewardJournal(Journal(MemoryJournal(), "reward/proxy", 1), None, *rest)
    await kept.replay(0.0)
    kept.batch_announced("few/step-1", 1)
    for number in range(2 * MOST_BATCHES):
        kept.batch_announced(f"many/step-{number}", 1)
        await asyncio.sleep(0)
    names = [one.batch for one in kept._state().announced]
    assert (names[0], names[-1]) == ("few/step-1", f"many/step-{2 * MOST_BATCHES - 1}")
    assert len(names) == MOST_BATCHES


async def test_journal_keeps_the_verdicts_of_a_job_beside_one_with_many_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "LEAST_EVENTS", 1)
    store = MemoryJournal()
    rest = RewardBatches(), PassedStages(), logging.LoggerAdapter(logging.getLogger())
    kept = RewardJournal(Journal(store, "reward/proxy", 1), None, VerdictCache(), *rest)
    await kept.replay(0.0)
    kept.verdict_given("few/step-1", "r", Scored(1.0, "ok"))
    for number in range(2 * MOST_BATCHES):
        kept.verdict_given(f"many/step-{number}", f"r{number}", Scored(0.0, "ok"))
        await asyncio.sleep(0)
    again = VerdictCache()
    await RewardJournal(Journal(store, "reward/proxy", 2), None, again, *rest).replay(0.0)
    assert again.get("few/step-1", "r") == Scored(1.0, "ok")
    assert again.get("many/step-0", "r0") is None
    assert len(kept._state().verdicts) == len(again) == MOST_BATCHES
