"""The simulated disk keeps the promises of a real disk.

At any death a stream is a prefix that holds everything acknowledged. A full disk loses nothing. A zombie is
refused.
"""

import asyncio
import contextlib
import errno
import random
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.sim.disk import SimDisk, SimJournal, SimMemory
from gleaner.sim.kept_streams import KeptStreams
from gleaner.sim.loop import ProcessLoop, SimLoop
from gleaner.supervisor import Fenced, JournalDamaged, JournalError, JournalFull, Message
from gleaner.supervisor.journal.group_commit import FLUSH_SHARE, Committed, Keeper, NewRow, Write
from gleaner.supervisor.journal.port import Journal
from gleaner.supervisor.journal.sqlite import SqliteKeeper
from gleaner.supervisor.message import encode_body

PLACE = "journal/rollout.sqlite"
COMMIT_S = 0.005


class DiskFact(Message, frozen=True):
    number: int


class DiskSum(Message, frozen=True):
    numbers: list[int]


class Machine:
    """A host with a disk, and its successive processes."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = SimLoop()
        self.disk = SimDisk(self.loop, random.Random(f"{seed}/disk"), "h")
        self.lives = 0

    def start(self) -> tuple[ProcessLoop, SimJournal]:
        self.lives += 1
        process = self.loop.spawn("rollout", "h")
        return process, self.disk.journal(PLACE, process, commit_s=COMMIT_S)

    def replay(self, stream: str = "a") -> list[int]:
        """The events that the next life reads there."""
        process, store = self.start()

        async def look() -> list[int]:
            numbers = []
            async for event in Journal(store, stream, 1000 + self.lives).replay():
                numbers += [event.number] if isinstance(event, DiskFact) else []
                numbers += event.numbers if isinstance(event, DiskSum) else []
            return numbers

        return self.loop.complete(process, look(), within_s=10.0)


def fact(number: int) -> DiskFact:
    return DiskFact(number=number)


def test_awaited_append_flushes_its_group_within_commit_spacing() -> None:
    machine = Machine()
    process, store = machine.start()
    journal, committed_s = Journal(store, "a", 1), list[float]()

    async def write() -> None:
        queued = journal.append_soon(fact(0))
        for number in range(1, 4):
            await journal.append(fact(number))
            committed_s.append(process.time())
        await queued

    machine.loop.complete(process, write(), within_s=10.0)
    assert committed_s[0] < COMMIT_S, "the first append waited for its group"
    between_s = [later - before for before, later in pairwise(committed_s)]
    assert min(between_s) >= FLUSH_SHARE * COMMIT_S
    assert max(between_s) < COMMIT_S


@settings(max_examples=150, deadline=None)
@given(
    pauses_ms=st.lists(st.sampled_from([0.0, 0.2, 1.0, 4.9, 5.0, 9.0]), min_size=1, max_size=25),
    dies_ms=st.floats(0.0, 60.0),
    freezes_ms=st.none() | st.floats(0.0, 30.0),
    snapshots=st.sets(st.integers(0, 24)),
    slowness=st.sampled_from([1.0, 20.0]),
    seed=st.integers(0, 1 << 16),
)
def test_stream_after_crash_is_prefix_with_everything_acknowledged(
    pauses_ms: list[float],
    dies_ms: float,
    freezes_ms: float | None,
    snapshots: set[int],
    slowness: float,
    seed: int,
) -> None:
    machine = Machine(seed)
    machine.disk.slow(slowness)
    process, store = machine.start()
    journal = Journal(store, "a", 1)
    acknowledged: list[int] = []

    async def writes() -> None:
        for number, pause_ms in enumerate(pauses_ms):
            done = journal.append_soon(fact(number))
            asyncio.ensure_future(done).add_done_callback(lambda _, n=number: acknowledged.append(n))
            if number in snapshots:
                journal.snapshot_soon(DiskSum(numbers=list(range(number + 1))))
            await asyncio.sleep(pause_ms / 1000)

    process.create_task(writes())
    if freezes_ms is not None:
        machine.loop.call_at(freezes_ms / 1000, process.freeze)
        machine.loop.call_at(freezes_ms / 1000 + 0.02, process.thaw)
    machine.loop.call_at(dies_ms / 1000, process.kill)
    machine.loop.run(until_s=1.0)
    outcomes = list(acknowledged)
    found = machine.replay()
    assert found == list(range(len(found)))
    assert outcomes == list(range(len(outcomes)))
    assert len(outcomes) <= len(found) <= len(pauses_ms)
    assert not machine.loop.findings


def test_write_cut_by_a_kill_follows_the_seed() -> None:
    fates: dict[str, list[int]] = {}
    for seed in range(40):
        machine = Machine(seed)
        process, store = machine.start()
        journal = Journal(store, "a", 1)
        process.call_soon(journal.append_soon, fact(1))
        process.call_later(0.001, journal.append_soon, fact(2))
        machine.disk.slow(1000.0)  # so that the kill interrupts the write
        machine.loop.call_at(COMMIT_S + 0.2 + 1e-3, process.kill)
        machine.loop.run(until_s=9.0)
        cut = [what for what in machine.disk.counts if what.startswith("cut off")]
        machine.disk.slow(1.0)
        found = machine.replay()
        if cut:
            fates.setdefault(cut[0], found)
            assert found == fates[cut[0]]
        if "cut off: torn" in cut:
            assert machine.disk.counts["tail repaired"] == 1
    assert fates == {"cut off: kept": [1, 2], "cut off: torn": [], "cut off: lost": []}


def test_frozen_process_gets_its_commit_when_it_resumes() -> None:
    machine = Machine()
    process, store = machine.start()
    journal = Journal(store, "a", 1)
    times_s: list[float] = []

    async def writes() -> None:
        await journal.append(fact(1))
        times_s.append(machine.loop.now_s)

    machine.disk.slow(100.0)
    process.create_task(writes())
    machine.loop.call_at(COMMIT_S + 0.03, process.freeze)
    machine.loop.call_at(5.0, process.thaw)
    machine.loop.run(until_s=4.0)
    rows = machine.disk.view(PLACE).rows("a")
    assert rows is not None
    assert rows.last_seq == 1  # it is on the disk anyway
    machine.loop.run(until_s=6.0)
    assert times_s == [5.0]


def test_slow_disk_has_its_usual_pace_when_it_is_over() -> None:
    machine = Machine()
    machine.disk.slow(1.0, 2.0, bytes_per_s=1.0)
    write = Write("a", 1, [NewRow("DiskFact", 1, bytes(1000))], False)
    assert 2.0 < machine.disk.sync_s([write]) < 2.5  # and not the 1000 s of its bytes
    machine.loop.call_at(2.0, lambda: None)
    machine.loop.run(until_s=2.0)
    assert machine.disk.sync_s([write]) < 0.5


def test_full_disk_refuses_reports_and_loses_nothing() -> None:
    machine = Machine()
    process, store = machine.start()
    journal = Journal(store, "a", 1)

    async def story() -> None:
        await journal.append(fact(1))
        machine.disk.run_low()
        assert "little space" in journal.refuses()
        await journal.append(fact(2))
        machine.disk.fill()
        with pytest.raises(JournalFull, match="no space is left on the disk of h"):
            await journal.append(fact(3))
        with pytest.raises(JournalFull):
            await journal.probe()
        with pytest.raises(OSError, match="no space") as refused:
            machine.disk.files.write("/ckpt/1", b"weights")
        assert refused.value.errno == errno.ENOSPC
        machine.disk.make_room()
        assert "no space" in journal.refuses()  # until a write was tried
        await journal.probe()
        assert journal.refuses() == ""
        await journal.append(fact(4))
        await store.close()
        with pytest.raises(JournalError, match="closed"):
            await journal.append(fact(5))

    machine.loop.complete(process, story(), within_s=5.0)
    assert machine.replay() == [1, 2, 4]
    assert machine.disk.counts["refused: full"] == 1


def test_write_behind_one_that_found_no_space_fails_though_there_is_space_again() -> None:
    machine = Machine()
    machine.disk.slow(20.0)  # so that a second write is called for before the first one fails
    process, store = machine.start()
    journal, failed = Journal(store, "a", 1), list[bool]()

    async def story() -> None:
        await journal.append(fact(1))
        machine.disk.fill()
        first = journal.append_soon(fact(2))
        while store._in_flight is None:
            await asyncio.sleep(0.0005)
        behind = journal.append_soon(fact(3))
        results = asyncio.gather(first, behind, return_exceptions=True)
        with contextlib.suppress(JournalFull):
            await first
        machine.disk.make_room()
        failed.extend(isinstance(result, JournalFull) for result in await results)
        await journal.append(fact(4))

    machine.loop.complete(process, story(), within_s=60.0)
    assert failed == [True, True]
    assert machine.replay() == [1, 4]


def test_only_the_zombie_write_is_refused() -> None:
    machine = Machine()
    (old, old_store), (new, new_store) = machine.start(), machine.start()

    async def first() -> None:
        await Journal(old_store, "a", 1).append(fact(1))

    async def second() -> int:
        assert await new_store.newest_incarnation() == 1
        await Journal(new_store, "a", 2).append(fact(2))
        return await new_store.newest_incarnation()

    async def zombie() -> None:
        stale, other = Journal(old_store, "a", 1).append_soon(fact(3)), Journal(old_store, "b", 1)
        fine = other.append_soon(fact(4))
        with pytest.raises(Fenced, match="belongs to incarnation 2"):
            await stale
        assert await fine == 1

    machine.loop.complete(old, first(), within_s=1.0)
    assert machine.loop.complete(new, second(), within_s=1.0) == 2
    machine.loop.complete(old, zombie(), within_s=1.0)
    assert (machine.replay("a"), machine.replay("b")) == ([1, 2], [4])


def test_flipped_bit_is_refused_with_the_journal_name() -> None:
    machine = Machine()
    process, store = machine.start()

    async def writes() -> None:
        await Journal(store, "a", 1).append(fact(1))

    machine.loop.complete(process, writes(), within_s=1.0)
    assert machine.disk.damage(PLACE) == "a"
    with pytest.raises(JournalDamaged, match=PLACE):
        machine.replay()


@pytest.mark.parametrize("false_syncs", [False, True])
def test_forced_commits_survive_a_power_loss_unless_the_disk_only_reports_them(*, false_syncs: bool) -> None:
    """Two journals of a host: the commits of one are forced out."""
    kept: list[list[list[int]]] = []
    for seed in range(12):
        machine = Machine(seed)
        machine.disk.track_unsure()
        process, forced = machine.start()
        other = machine.disk.journal("journal/other.sqlite", process, commit_s=COMMIT_S)

        async def writes(forced: SimJournal = forced, other: SimJournal = other) -> None:
            await forced.force_out()
            for number in range(6):
                await Journal(forced, "a", 1).append(fact(number))
                await Journal(other, "a", 1).append(fact(number))

        machine.loop.complete(process, writes(), within_s=5.0)
        process.kill()
        machine.disk.lose_power(random.Random(seed), false_syncs=false_syncs)
        found = []
        for place in (PLACE, "journal/other.sqlite"):
            rows = machine.disk.view(place).rows("a")
            found.append([] if rows is None else [row.seq for row in rows.events])
        kept.append(found)
    whole = list(range(1, 7))
    assert all(forced == whole for forced, _ in kept) is not false_syncs
    assert not all(plain == whole for _, plain in kept)


Step = tuple[str, str, int, int]


@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["claim", "append", "append", "snapshot", "together"]),
            st.sampled_from(["a", "b"]),
            st.integers(1, 4),
            st.integers(0, 3),
        ),
        max_size=14,
    )
)
def test_simulated_journal_keeps_what_sqlite_keeps(steps: list[Step]) -> None:
    """For any writes in any lives: the same rows, sequence numbers, checksums and refusals."""
    with tempfile.TemporaryDirectory() as folder:
        real = SqliteKeeper(Path(folder) / "j.sqlite", durable=False, reserve_bytes=0)
        try:
            kept = KeptStreams(real.place, lambda: "", lambda: "")
            assert _outcomes(real, steps) == _outcomes(kept, steps)
            for stream in ("a", "b"):
                assert real.read(stream) == kept.read(stream)
            assert real.newest_incarnation() == kept.newest_incarnation()
        finally:
            real.close()


def _outcomes(keeper: Keeper, steps: list[Step]) -> list[object]:
    outcomes: list[object] = []
    for what, stream, incarnation, count in steps:
        rows = [NewRow("DiskFact", 1, encode_body(fact(number))) for number in range(count)]
        state = [NewRow("DiskSum", 1, encode_body(DiskSum(numbers=[count])))]
        writes = {
            "append": [Write(stream, incarnation, rows, False)],
            "snapshot": [Write(stream, incarnation, state, True)],
            "together": [Write("a", incarnation, rows, False), Write("b", incarnation, state, True)],
        }
        try:
            if what == "claim":
                keeper.claim(stream, incarnation)
            else:
                results = keeper.commit(writes[what])
                outcomes += [result if isinstance(result, Committed) else str(result) for result in results]
        except Fenced as problem:
            outcomes.append(str(problem))
    return outcomes


def test_memory_survives_processes_and_ends_with_the_host() -> None:
    memory = SimMemory()
    memory.write("/dev/shm/job/v1", b"image")
    memory.append("/dev/shm/job/log", b"line\n")
    memory.append("/dev/shm/job/log", b"line\n")
    assert memory.under("/dev/shm/job") == ["/dev/shm/job/log", "/dev/shm/job/v1"]
    assert memory.size_bytes == 15
    memory.corrupt("/dev/shm/job/v1", at=1)
    assert memory.read("/dev/shm/job/v1") == b"ilage"
    memory.delete("/dev/shm/job/log")
    memory.forget()
    assert memory.size_bytes == 0
    with contextlib.suppress(FileNotFoundError):
        memory.read("/dev/shm/job/v1")
        pytest.fail("it is still there")
