"""Shared memory of a reward host that is full: an item whose program does not fit is tried elsewhere."""

import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from gleaner.actors.reward import pipe
from gleaner.actors.reward.blobs import BlobFolder
from gleaner.actors.reward.carried import Carried, digest_of, packed
from gleaner.actors.reward.pool import pool_limits
from gleaner.actors.reward.scoring import ScoringWorker, WorkerSpec
from gleaner.actors.reward.stage_pools import HostParts, StageLimits, StagePools
from gleaner.actors.reward.stages import COMPILE, RUN
from gleaner.actors.reward.verdicts import BLOB_LOST, OURS, OVERLOADED
from gleaner.actors.reward.worker import answer_of
from gleaner.configs.schema import Reward

PROGRAM = bytes(200_000)
ITEM = pipe.TextItem("t", b"{}", "a response")


class FullFolder(BlobFolder):
    """Blobs in memory that takes nothing."""

    def put(self, content: bytes) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")


class Compiles:
    """A scorer whose programs are too large to travel with their items."""

    def problem(self, split: str, index: int) -> pipe.ProblemOut:
        raise NotImplementedError

    def score_stage(self, stage: str, item: pipe.Scorable, carried: Carried) -> Carried:
        return Carried(program=PROGRAM, digest=digest_of(PROGRAM))


async def _no_worker(*_: object) -> ScoringWorker:
    raise AssertionError("no worker gets an item whose program is not here")


async def _fetched(digest: str) -> bytes | None:
    return PROGRAM


async def _gone(digest: str) -> bytes | None:
    return None


async def _damaged(digest: str) -> bytes | None:
    return b"another program"


@pytest.mark.parametrize(
    ("full", "fetch", "status", "text"),
    [
        (True, _fetched, OVERLOADED, "no room for blob"),
        (False, _gone, BLOB_LOST, "could not be fetched"),
        (False, _damaged, BLOB_LOST, "could not be fetched"),
    ],
)
async def test_item_whose_program_cannot_be_kept_gets_no_score(
    tmp_path: Path, full: bool, fetch: Callable[[str], Awaitable[bytes | None]], status: str, text: str
) -> None:
    blobs = (FullFolder if full else BlobFolder)(tmp_path / "blobs")
    limits = StageLimits(workers={RUN: 1}, pool=pool_limits(Reward()), verdict_s=5.0, staged=True)
    pools = StagePools(limits, WorkerSpec(), _no_worker, HostParts(make_blobs=lambda: blobs))
    carried = packed(Carried(digest=digest_of(PROGRAM)))
    verdict, _ = await pools.verdict(Mock(), RUN, pipe.pack(ITEM), carried, fetch)
    assert (verdict.score, verdict.status) == (None, status)
    assert text in verdict.detail
    assert (status in OURS) == full, "the next host may have room; what is gone is compiled again"


def test_program_for_which_its_host_has_no_memory_is_a_failure_of_ours(tmp_path: Path) -> None:
    """And not of the response: another host compiles it."""
    answer = answer_of(Compiles(), pipe.StageItem(COMPILE, ITEM, b""), FullFolder(tmp_path))
    assert isinstance(answer, pipe.ScoreOut)
    assert answer.status == OVERLOADED
    assert "no room for a program of 200000 bytes: [Errno 28] No space left on device" in answer.detail


def test_memory_that_fills_while_a_blob_is_written_leaves_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = BlobFolder(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gleaner.actors.reward.blobs.os.replace", full)
    with pytest.raises(OSError, match="No space"):
        blobs.put(PROGRAM)
    assert list(tmp_path.iterdir()) == []
