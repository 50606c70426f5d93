"""Sharded deltas: those of several owners join under one table, or are refused."""

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.model.byte_ranges import Run
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.delta.image_delta import Delta, apply
from gleaner.actors.weights.delta.sharded import own_part
from gleaner.actors.weights.delta.table import BadDelta, BundleOwner, DeltaTable
from gleaner.actors.weights.image.manifest import Manifest, hashed

CHUNK, CHUNKS = 4096, 12
SIZE = CHUNK * CHUNKS
SPECS = [TensorSpec("w", "bfloat16", (SIZE // 2,), 0, SIZE)]


@dataclass
class Parts:
    """Two versions of an image whose chunks belong to `owners`, and each owner's delta between them."""

    owners: list[int]
    images: list[bytes]

    def __post_init__(self) -> None:
        self.manifests = [self.manifest(version) for version in range(len(self.images))]

    def manifest(self, version: int) -> Manifest:
        runs: dict[str, list[Run]] = {}
        for number, owner in enumerate(self.owners):
            runs.setdefault(str(owner), []).append(Run(number * CHUNK, CHUNK))
        view = memoryview(self.images[version])
        shares = {owner: hashed(view, own) for owner, own in runs.items()}
        return Manifest.join(version, SPECS, shares)

    def deltas(self) -> dict[str, Delta]:
        found = {}
        manifest = self.manifests[1]
        views = [memoryview(image) for image in self.images]
        for owner, part in (manifest.shares() or {"0": manifest.chunks}).items():
            delta = Delta.build(*views, *self.manifests, part=part)
            assert delta is not None
            found[owner] = delta
        return found


def parts(owners: list[int], density: float = 0.01, seed: int = 0) -> Parts:
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 256, SIZE, np.uint8)
    second = np.where(rng.random(SIZE) < density, rng.integers(0, 256, SIZE, np.uint8), first)
    return Parts(owners, [first.tobytes(), second.tobytes()])


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 3), min_size=CHUNKS, max_size=CHUNKS),
    st.sampled_from([0.0, 0.0001, 0.01, 0.9]),
    st.integers(0, 99),
)
def test_deltas_of_owners_join_into_one_delta(owners: list[int], density: float, seed: int) -> None:
    one = parts(owners, density, seed)
    made = one.deltas()
    table = DeltaTable.join({owner: delta.table for owner, delta in made.items()})
    assert DeltaTable.decode(table.encode()) == table
    bundles = [bundle for delta in made.values() for bundle in delta.bundles]
    assert table.nbytes == sum(map(len, bundles))
    into = bytearray(SIZE)
    apply([Delta(table, bundles)], memoryview(one.images[0]), memoryview(into), *one.manifests)
    assert bytes(into) == one.images[1]
    payload = b"".join(map(bytes, bundles))
    for owner, delta in made.items():
        at, own = own_part(table, delta.table, owner), b"".join(map(bytes, delta.bundles))
        assert payload[at : at + len(own)] == own, "each bundle is where the table has it"


def test_table_of_one_publisher_has_no_owners() -> None:
    [made] = parts([0] * CHUNKS).deltas().values()
    assert b"owners" not in made.table.encode()


def test_parts_of_different_deltas_are_not_joined() -> None:
    owners = [0, 1] * (CHUNKS // 2)
    mine, theirs = (parts(owners, seed=seed).deltas() for seed in (1, 2))
    for tables, words in (
        ({"0": mine["0"].table, "1": theirs["1"].table}, "1 has a part of another delta"),
        ({"0": mine["0"].table, "1": mine["0"].table}, "has two rows"),
        ({"": mine["0"].table, "1": mine["1"].table}, "2 owners of"),
    ):
        with pytest.raises(BadDelta, match=words):
            DeltaTable.join(tables)


def test_owner_refuses_a_table_without_its_part() -> None:
    made = parts([0, 1] * (CHUNKS // 2)).deltas()
    table = DeltaTable.join({owner: delta.table for owner, delta in made.items()})
    with pytest.raises(BadDelta, match="not made of 1's"):
        own_part(table, made["0"].table, "1")
    with pytest.raises(BadDelta, match="not made of 2's"):
        own_part(table, made["1"].table, "2")


def test_owners_must_cover_all_bundles() -> None:
    made = parts([0, 1] * (CHUNKS // 2)).deltas()
    table = DeltaTable.join({owner: delta.table for owner, delta in made.items()})
    for owners in (
        (BundleOwner("0", 1),),
        (BundleOwner("0", 1), BundleOwner("0", 1)),
        (BundleOwner("0", 3), BundleOwner("1", -1)),
    ):
        changed = msgspec.structs.replace(table, owners=owners)
        lying = msgspec.structs.replace(changed, root=changed.expected_root())
        with pytest.raises(BadDelta, match="owners of"):
            DeltaTable.decode(lying.encode())
