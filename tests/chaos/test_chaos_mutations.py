"""Planted bugs: each fits the source as it is, compiles, and is planted in memory alone."""

import subprocess
import sys

import pytest

from chaos.faults import KINDS
from chaos.hunt import Caught, table
from chaos.invariants.catalogue import CHECKS
from chaos.mutate import CannotPlant, Edit, changed, plant, source_of
from chaos.mutations import BY_NAME, MUTATIONS, Mutation


def test_there_are_enough_of_them_and_each_has_a_name() -> None:
    assert len(MUTATIONS) >= 15
    assert len(BY_NAME) == len(MUTATIONS)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_bug_fits_the_source_and_compiles(mutation: Mutation) -> None:
    by_module: dict[str, list[Edit]] = {}
    for edit in mutation.edits:
        by_module.setdefault(edit.module, []).append(edit)
    for module, edits in by_module.items():
        source, path = source_of(module)
        compile(changed(source, edits), str(path), "exec")
    assert set(mutation.caught_by) <= {check.name for check in CHECKS}
    assert set(mutation.faults) <= KINDS.keys()
    assert mutation.safeguard


def test_an_edit_that_fits_no_longer_says_so() -> None:
    with pytest.raises(CannotPlant, match="stands there 0 times"):
        changed("a = 1\n", [Edit("m", "b = 2", "b = 3")])
    with pytest.raises(CannotPlant, match="stands there 2 times"):
        changed("a = 1\na = 1\n", [Edit("m", "a = 1", "a = 3")])
    with pytest.raises(CannotPlant, match="no such module"):
        source_of("chaos.nowhere")


def test_a_module_that_is_imported_already_is_not_changed() -> None:
    with pytest.raises(CannotPlant, match="is imported already"):
        plant([Edit("chaos.mutate", "class CannotPlant", "class Cannot")])


def test_a_planted_bug_changes_what_is_imported_and_nothing_on_disk() -> None:
    before, path = source_of("transport.token_ring")
    code = (
        "from chaos.mutate import plant\n"
        "from chaos.mutations import BY_NAME\n"
        "plant(BY_NAME['a ring without an end'].edits)\n"
        "from transport.token_ring import SendRing\n"
        "ring = SendRing(1)\n"
        "ring.push('x'); ring.push('y')\n"
        "print(ring.full, ring.unacknowledged)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False 2"
    assert path.read_text() == before


def test_the_table_tells_what_was_not_caught() -> None:
    text = table([Caught("a", "the fence", 3, "I4", "x"), Caught("b", "the dedupe", 40)])
    assert "| a | the fence | I4 | 3 |" in text
    assert "| b | the dedupe | **nothing** | none in 40 |" in text
