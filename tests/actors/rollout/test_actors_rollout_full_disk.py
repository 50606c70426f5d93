"""A manager with a full disk: begins nothing new, gives the reason, loses nothing."""

import asyncio
from pathlib import Path

import pytest
from rollout_world import submission

from gleaner.actors.protocol.rollout import RolloutFigures, RolloutStatus, SubmitBatch, Weights
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.configs.schema import Config
from gleaner.supervisor import Done, JournalFull, SqliteJournal, Supervisor, Suspended, child, one_for_one
from gleaner.supervisor.testing import TestSystem

WEIGHTS = Weights(version=1, root=b"root", sources=())
REASON = "12 KiB are left in /somewhere, new work needs 65536: free space there"


def submit(step: int) -> SubmitBatch:
    return SubmitBatch(batch=submission(f"step-{step}"), weights=WEIGHTS)


async def test_nearly_full_disk_begins_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with TestSystem(tmp_path) as test:
        test.spawn("rollout/balancer", lambda: LoadBalancer(4))
        test.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(Config())))
        assert await test.ask("rollout/manager", submit(1), Done) == Done()
        store = test.system._journals
        assert isinstance(store, SqliteJournal)
        with monkeypatch.context() as patched:
            patched.setattr(store._keeper, "low", lambda: REASON)
            with pytest.raises(Suspended, match=f"no new batches: {REASON}"):
                await test.ask("rollout/manager", submit(2), Done, deadline_s=0.3)
            assert await test.ask("rollout/manager", submit(1), Done) == Done(), "the begun batch continues"
            figures = await test.ask("rollout/manager", RolloutStatus(), RolloutFigures)
            assert figures.queued == 4
            shown = next(row for row in test.system.state().actors if row.name == "rollout/manager")
            assert shown.figures["suspended"] == f"no new batches: {REASON}"
        assert await test.ask("rollout/manager", submit(2), Done) == Done()


async def test_full_disk_restart_keeps_acknowledged_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.supervisor.managed_child.LOOK_S", 0.05)
    async with TestSystem(tmp_path) as test:
        test.spawn("rollout/balancer", lambda: LoadBalancer(4))
        manager = child("rollout/manager", lambda: RolloutManager(ManagerSettings.of(Config())))
        tree = Supervisor(test.system, one_for_one(manager, name="rollout"), on_failure=pytest.fail)
        await tree.start()
        await test.ask("rollout/manager", submit(1), Done)
        store = test.system._journals
        assert isinstance(store, SqliteJournal)

        def full(*_: object) -> None:
            raise JournalFull(REASON)

        with monkeypatch.context() as patched:
            patched.setattr(store._keeper, "commit", full)
            patched.setattr(store._keeper, "probe", full)
            with pytest.raises(Suspended, match="free space there"):
                await test.ask("rollout/manager", submit(2), Done, deadline_s=10.0)
            with pytest.raises(Suspended, match="rollout/manager takes nothing for now"):
                await test.ask("rollout/manager", RolloutStatus(), RolloutFigures, deadline_s=0.2)
        figures = await test.ask("rollout/manager", RolloutStatus(), RolloutFigures, deadline_s=60.0)
        assert figures.queued == 4, "the refused batch is absent, the one before is present"
        await test.ask("rollout/manager", submit(2), Done)
        await tree.stop()


class FullJournal:
    """Refuses every commit, and records it."""

    def __init__(self) -> None:
        self.commits: list[asyncio.Future[int]] = []

    def beside(self, name: str) -> "FullJournal":
        return self

    def append_soon(self, *events: object, flush: bool = False) -> "asyncio.Future[int]":
        commit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(commit.set_exception, JournalFull(REASON))
        self.commits.append(commit)
        return commit

    snapshot_soon = append_soon


async def test_failed_commits_of_a_batch_are_all_awaited() -> None:
    journal = FullJournal()
    journaled = JournaledState(journal, journal, 100)  # type: ignore[arg-type]
    with pytest.raises(JournalFull):
        await journaled.submit(submission("step-1"), WEIGHTS)
    assert len(journal.commits) == 2
    assert [commit._log_traceback for commit in journal.commits] == [False, False]
