"""The manager's journaled: restored events, and a bounded replay within a batch."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from rollout_world import tokens_of

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.rollout import GroupOut, Weights
from gleaner.actors.rollout.batches.group_delivery import group_out
from gleaner.actors.rollout.journal.journaled_state import JournaledState, ManagerSnapshot, ledger_of
from gleaner.actors.rollout.state.events import Dispatched, FrameLogged, GroupsTaken, InstanceJoined, Scored
from gleaner.supervisor import Journal, SqliteJournal

LIMIT = 50
FRAMES = 220


def frame(seq: int) -> FrameLogged:
    return FrameLogged(
        instance="spot",
        incarnation=1,
        seq=seq,
        tickets=(1).to_bytes(4, "little"),
        tokens=seq.to_bytes(4, "little"),
        logprobs=bytes(4),
        flags=bytes(1),
    )


def journaled(store: SqliteJournal, incarnation: int) -> JournaledState:
    return JournaledState(Journal(store, "m", incarnation), Journal(store, "m/ledger", incarnation), LIMIT)


async def test_long_batch_is_replayed_from_a_snapshot_inside(tmp_path: Path) -> None:
    store = SqliteJournal(tmp_path / "j.sqlite", commit_s=0)
    before = journaled(store, 1)
    prompt = Prompt(split="train", index=0, tokens=(1,), seeds=(7,))
    batch = BatchSubmitted(batch="b", version=0, prompts=(prompt,), max_new_tokens=FRAMES + 1)
    await before.submit(batch, Weights(version=0, root=b"r", sources=("a",)))
    await before.record(InstanceJoined(instance="spot", incarnation=1))
    await before.record(
        Dispatched(instance="spot", incarnation=1, version=0, tickets=(1,), requests=("b/0/0",))
    )
    for seq in range(1, FRAMES + 1):
        _, committed = before.enter(frame(seq))
    await committed
    snapshot, events = await store.read("m")
    assert isinstance(snapshot, ManagerSnapshot)
    assert len(events) < LIMIT
    after = journaled(store, 2)
    await after.replay()
    assert after.state.snapshot() == before.state.snapshot()
    assert after.weights == before.weights
    assert tokens_of(after.state.log.requests["b/0/0"]) == list(range(1, FRAMES + 1))
    await store.close()


async def opened(tmp_path: Path, incarnation: int = 1, **bounds: int) -> tuple[SqliteJournal, JournaledState]:
    store = SqliteJournal(tmp_path / "j.sqlite", commit_s=0)
    journal, ledger = Journal(store, "m", incarnation), Journal(store, "m/ledger", incarnation)
    return store, JournaledState(journal, ledger, bounds.get("events", LIMIT), bounds.get("bytes", 1 << 30))


def batch_of(name: str, new_tokens: int = 100) -> BatchSubmitted:
    prompt = Prompt(split="train", index=0, tokens=(1, 2, 3), seeds=(7, 8))
    return BatchSubmitted(batch=name, version=0, prompts=(prompt,), max_new_tokens=new_tokens)


WEIGHTS = Weights(version=0, root=b"r", sources=("a",))


async def finish(
    journaled: JournaledState, name: str, tickets: tuple[int, int], seq: int, length: int = 5
) -> None:
    """Both requests of the batch are decoded on one instance, one frame per token, and scored."""
    requests = (f"{name}/0/0", f"{name}/0/1")
    await journaled.record(
        Dispatched(instance="spot", incarnation=1, version=0, tickets=tickets, requests=requests)
    )
    rows = np.array(tickets, np.uint32).tobytes()
    for step in range(length):
        await journaled.record(
            FrameLogged(
                instance="spot",
                incarnation=1,
                seq=seq + step,
                tickets=rows,
                tokens=np.array([step, 100 + step], np.uint32).tobytes(),
                logprobs=np.array([-step, step], np.float32).tobytes(),
                flags=bytes([2 * (step == length - 1)] * 2),
            )
        )
    for request in requests:
        await journaled.record(Scored(request=request, score=1.0))


def handed(journaled: JournaledState, batch: str) -> GroupOut:
    return group_out(journaled.state.log.batches[batch], 0)


async def test_handed_out_group_moves_from_memory_to_shelf(
    tmp_path: Path,
) -> None:
    store, journaled = await opened(tmp_path)
    await journaled.record(InstanceJoined(instance="spot", incarnation=1))
    for name, tickets, seq in (("one", (1, 2), 1), ("two", (3, 4), 6)):
        await journaled.submit(batch_of(name), WEIGHTS)
        await finish(journaled, name, tickets, seq)
    held, out = journaled.state.log.columns.pages[0], handed(journaled, "one")
    await journaled.hand_out(GroupsTaken(batch="one", taker=1, groups=(0,)), [out])
    assert journaled.state.log.columns.pages[0] == held // 2, "its pages were not given back"
    log = journaled.state.log.requests["one/0/1"]
    assert (len(log), log.tokens_crc()) == (5, zlib.crc32(out.samples[1].tokens))
    with pytest.raises(LookupError, match="one/0/1"):
        log.tokens_bytes()
    assert await journaled.shelves.get("one", [0]) == {0: out}
    assert journaled.state.tokens_lost == 0
    await store.close()

    store, after = await opened(tmp_path, 2)
    await after.replay()
    assert after.state.snapshot() == journaled.state.snapshot()
    assert await after.shelves.get("one", [0]) == {0: out}, "a newer manager does not find the group"
    two = handed(after, "two")
    await after.hand_out(GroupsTaken(batch="two", taker=1, groups=(0,)), [two])
    ledger = ledger_of(after.state.log.batches["one"])
    assert [(one.count, one.crc) for one in ledger.requests] == [
        (5, zlib.crc32(sample.tokens)) for sample in out.samples
    ]
    await after.release(after.state.log.batches["one"])
    assert await after.shelves.get("one", [0]) == {}
    assert await after.shelves.get("two", [0]) == {0: two}, "the release of another batch removed the group"
    await after.submit(batch_of("one"), WEIGHTS)
    assert await after.shelves.get("one", [0]) == {}, "a batch of the same name finds the old group"
    await store.close()


async def test_frames_of_many_bytes_cause_a_snapshot_early(tmp_path: Path) -> None:
    store, journaled = await opened(tmp_path, events=10**6, bytes=5000)
    await journaled.record(InstanceJoined(instance="spot", incarnation=1))
    await journaled.submit(batch_of("b", 1000), WEIGHTS)
    await finish(journaled, "b", (1, 2), 1, 300)
    snapshot, events = await store.read("m")
    assert isinstance(snapshot, ManagerSnapshot)
    assert 0 < len(events) * 26 <= 5000 + 26 * 4
    await store.close()
    store, after = await opened(tmp_path, 2)
    await after.replay()
    assert after.state.snapshot() == journaled.state.snapshot()
    await store.close()
