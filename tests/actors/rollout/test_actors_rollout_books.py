"""The manager's books: what was committed comes back, and the replay stays bounded within a batch too."""

from pathlib import Path

from rollout_world import tokens_of

from actors.rollout.books import Books, ManagerSnapshot
from actors.rollout.events import BatchSubmitted, Dispatched, FrameLogged, InstanceJoined, Prompt
from actors.rollout.messages import Weights
from supervisor import Journal, SqliteJournal

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


def books(store: SqliteJournal, incarnation: int) -> Books:
    return Books(Journal(store, "m", incarnation), Journal(store, "m/ledger", incarnation), LIMIT)


async def test_a_long_batch_is_replayed_from_a_snapshot_within_it(tmp_path: Path) -> None:
    store = SqliteJournal(tmp_path / "j.sqlite", commit_s=0)
    before = books(store, 1)
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
    after = books(store, 2)
    await after.replay()
    assert after.state.snapshot() == before.state.snapshot()
    assert after.weights == before.weights
    assert tokens_of(after.state.log.requests["b/0/0"]) == list(range(1, FRAMES + 1))
    await store.close()
