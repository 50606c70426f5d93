"""Images, copies, checkpoints and histories in memory.

They behave like those in files and detect damage.
"""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from gleaner.actors.cluster.saved_state import Checkpoints, Copies, Damaged, StateDirFull
from gleaner.actors.training.history import HistoryError, HistoryFull
from gleaner.actors.training.records import AnyRecord, Eval, History
from gleaner.actors.weights.image.manifest import ImageMismatch, Manifest
from gleaner.actors.weights.image.port import Images, ImageStoreFull, NoSuchImage, VersionConflict
from gleaner.sim.file_mapping import FileMapping
from gleaner.sim.files import SimFiles
from gleaner.sim.models.clock import Immediate
from gleaner.sim.models.history_memory import SimHistory
from gleaner.sim.models.image_memory import ImagePool, SimImages
from gleaner.sim.models.saved_memory import SimCheckpoints, SimCopies
from gleaner.sim.models.weight_bytes import BrokenImage, image_layout, image_of, weights_of

HOME = Path("/host/images")


class Later(Immediate):
    """A clock whose effects wait until `pass_time`, or never happen."""

    def __init__(self) -> None:
        super().__init__()
        self.effects: list[Callable[[], None]] = []

    def then(self, effect: Callable[[], None]) -> None:
        self.effects.append(effect)

    def pass_time(self) -> None:
        effects, self.effects = self.effects, []
        for effect in effects:
            effect()


def put(store: SimImages, version: int, data: bytes) -> None:
    with store.create(version, len(data)) as draft:
        draft.view[:] = data
        draft.seal()


def test_sealed_image_is_visible_to_all_host_processes() -> None:
    memory: dict[Path, bytes] = {}
    writer, reader = SimImages(memory, HOME), SimImages(memory, HOME)
    port: Images = reader
    with writer.create(3, 8) as draft:
        draft.view[:] = b"weights!"
        assert port.versions() == []
        draft.seal()
    assert port.versions() == [3]
    with port.open(3) as image:
        assert bytes(image.view) == b"weights!"
        assert image.view.readonly
    assert SimImages(memory, Path("/host/other")).versions() == []


def test_dropped_or_orphaned_draft_leaves_nothing() -> None:
    memory: dict[Path, bytes] = {}
    store, clock = SimImages(memory, HOME), Later()
    with store.create(1, 4) as draft:
        draft.view[:] = b"half"
    with store.create(2, 4) as draft:
        draft.view[:] = b"full"
        draft.seal_after(clock)
    assert store.versions() == []
    clock.pass_time()
    assert store.versions() == [2]


def test_other_bytes_under_a_version_are_refused() -> None:
    store = SimImages({}, HOME)
    put(store, 1, b"one")
    put(store, 1, b"one")
    with pytest.raises(VersionConflict):
        put(store, 1, b"two")
    with store.create(1, 3) as draft, pytest.raises(VersionConflict):
        draft.view[:] = b"two"
        draft.seal_after(Later())


def test_oldest_unused_version_is_evicted() -> None:
    store = SimImages({}, HOME, keep=2)
    put(store, 1, b"1")
    put(store, 2, b"2")
    with store.open(1):
        put(store, 3, b"3")
        assert store.versions() == [1, 3]
        with store.open(3), pytest.raises(ImageStoreFull):
            store.create(4, 1)
    with pytest.raises(NoSuchImage):
        store.open(2)


def test_notes_are_stored_and_removed_with_their_image() -> None:
    memory: dict[Path, bytes] = {}
    store = SimImages(memory, HOME)
    put(store, 1, b"1")
    assert store.noted(1) is None
    store.note(1, b"manifest")
    assert SimImages(memory, HOME).noted(1) == b"manifest"
    store.discard(1)
    assert memory == {}
    with pytest.raises(NoSuchImage):
        store.noted(1)


def test_equal_images_of_many_hosts_are_stored_once() -> None:
    pool, image = ImagePool(), image_of(b"\x01" * 32, 8192)
    first, second = ({}, {})  # type: tuple[dict[Path, bytes], dict[Path, bytes]]
    put(SimImages(first, HOME, pool), 1, image)
    put(SimImages(second, HOME, pool), 1, bytes(bytearray(image)))
    assert first[HOME / "v000000001.image"] is second[HOME / "v000000001.image"]


def test_image_that_another_host_has_takes_no_memory_of_its_own() -> None:
    pool, image = ImagePool(), image_of(b"\x01" * 32, 8192)
    assert pool.shared(image) == image
    assert pool.shared(bytearray(image)) is pool.shared(image)
    changed = bytearray(image)
    changed[1] ^= 1
    assert pool.shared(changed) == changed
    changed[2] ^= 1  # the pool holds bytes that no writer can change
    assert pool.shared(changed) == changed
    assert pool.zeros(64) is pool.zeros(64)


def test_production_manifest_fits_an_image_and_detects_change() -> None:
    image = image_of(b"\x02" * 32, 5 * 4096)
    assert weights_of(image) == b"\x02" * 32
    manifest = Manifest.build(1, memoryview(image), image_layout(len(image)), chunk_bytes=4096)
    assert len(manifest.chunks) == 5
    damaged = bytearray(image)
    damaged[9000] ^= 1
    with pytest.raises(ImageMismatch) as caught:
        manifest.verify(memoryview(damaged))
    assert caught.value.chunk == 2
    with pytest.raises(BrokenImage):
        weights_of(bytes(damaged))
    assert image != image_of(b"\x03" * 32, 5 * 4096)


def test_newest_whole_copy_survives_a_damaged_newer_one() -> None:
    memory: dict[Path, bytes] = {}
    copies = SimCopies(memory, Path("/state"), Immediate())
    port: Copies = copies
    assert port.newest() is None
    for step in (1, 2, 3):
        copies.write(step, {"state": b"%d" % step})
    newest = port.newest()
    assert newest is not None
    assert newest.step == 3
    memory[newest.path / "state"] = b"x"
    older = port.newest()
    assert older is not None
    assert older.step == 2


def test_copy_replaces_those_of_its_step_and_of_later_ones() -> None:
    memory: dict[Path, bytes] = {}
    copies = SimCopies(memory, Path("/state"), Immediate())
    for step in (5, 6):
        copies.write(step, {"state": b"of another life"})
    for step in (5, 6):
        copies.write(step, {"state": b"mine"})
        newest = copies.newest()
        assert newest is not None
        assert (newest.step, memory[newest.path / "state"]) == (step, b"mine")


def test_copy_counts_when_its_time_is_over() -> None:
    memory: dict[Path, bytes] = {}
    clock = Later()
    copies = SimCopies(memory, Path("/state"), clock)
    copies.write(1, {"state": b"1"})
    assert copies.newest() is None
    clock.pass_time()
    copies.write(2, {"state": b"2"})
    newest = copies.newest()
    assert newest is not None
    assert newest.step == 1


class Vault:
    """A host with copies and checkpoints."""

    def __init__(self) -> None:
        self.memory: dict[Path, bytes] = {}
        self.durable: dict[Path, bytes] = {}
        self.clock = Later()
        self.copies = SimCopies(self.memory, Path("/state"), Immediate())
        self.store = SimCheckpoints(self.durable, self.memory, Path("/ckpt"), 2, self.clock, 4.0)

    def save(self, step: int) -> None:
        self.copies.write(step, {"state": b"%d" % step})
        copy = self.copies.newest()
        assert copy is not None
        self.store.adopt(copy)


def test_last_checkpoints_are_kept_and_appear_whole_later() -> None:
    vault = Vault()
    port: Checkpoints = vault.store
    for step in (1, 2, 3):
        vault.save(step)
        assert step not in port.steps()
        vault.clock.pass_time()
    assert port.steps() == [2, 3]
    assert vault.clock.spent_s == 12.0
    newest = port.latest().checkpoint
    assert newest is not None
    assert (newest.step, newest.path) == (3, port.path(3))


def test_damaged_checkpoint_is_skipped_and_rewritten() -> None:
    vault = Vault()
    for step in (1, 2):
        vault.save(step)
        vault.clock.pass_time()
    vault.durable[vault.store.path(2) / "state"] = b"?"
    latest = vault.store.latest()
    assert latest.checkpoint is not None
    assert latest.checkpoint.step == 1
    assert "step-000002" in latest.skipped[0]
    vault.save(2)
    vault.clock.pass_time()
    again = vault.store.latest()
    assert again.checkpoint is not None
    assert again.checkpoint.step == 2


def test_full_disk_takes_no_checkpoint_and_keeps_the_last() -> None:
    vault, free = Vault(), [10_000]

    def take(bytes_more: int) -> None:
        if bytes_more > free[0]:
            raise OSError(errno.ENOSPC, "no space is left")

    disk = FileMapping(SimFiles(take), Path("/ckpt"))
    vault.store = SimCheckpoints(disk, vault.memory, Path("/ckpt"), 2, vault.clock, 4.0)
    vault.save(1)
    vault.clock.pass_time()
    free[0] = 5  # enough for the state, not for its seal
    vault.save(2)
    with pytest.raises(StateDirFull, match="/ckpt.*free space there"):
        vault.clock.pass_time()
    assert vault.store.steps() == [1]
    assert not any("step-000002" in str(path) for path in disk)
    free[0] = 10_000
    vault.save(2)
    vault.clock.pass_time()
    newest = vault.store.latest().checkpoint
    assert newest is not None
    assert newest.step == 2


def test_copy_replaced_meanwhile_is_not_adopted() -> None:
    vault = Vault()
    vault.copies.write(1, {"state": b"1"})
    old = vault.copies.newest()
    assert old is not None
    vault.copies.write(2, {"state": b"2"})
    vault.copies.write(3, {"state": b"3"})
    with pytest.raises(Damaged):
        vault.store.adopt(old)


def test_history_continues_after_its_last_writer() -> None:
    records: list[AnyRecord] = []
    first: History = SimHistory(records)
    first.write(Eval(t_s=4.0, step=0, when="first", reward=0.5, problems=8))
    second = SimHistory(records)
    assert (second.last_t_s, second.last_step) == (4.0, 0)
    with pytest.raises(HistoryError):
        second.write(Eval(t_s=float("nan"), step=0, when="last", reward=0.5, problems=8))
    with pytest.raises(HistoryFull):
        SimHistory(records, refuses=lambda: True).write(records[0])
    assert len(records) == 1
