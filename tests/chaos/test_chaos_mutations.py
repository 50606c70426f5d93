"""Planted bugs: each fits the source, compiles, and is planted in memory only.

The results of hunts are kept.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from gleaner.chaos.bounds import Bounds, bearable
from gleaner.chaos.faults import KINDS, kind_of
from gleaner.chaos.guided_schedules import LEADS, lead
from gleaner.chaos.hunt import focused, hunt
from gleaner.chaos.hunt_results import PAGE, HuntResult, put_in, read, table, taken_out, write
from gleaner.chaos.invariants.catalogue import CHECKS
from gleaner.chaos.mutate import CannotPlant, Edit, changed, plant, source_of
from gleaner.chaos.mutations import BY_NAME, MUTATIONS, Mutation
from gleaner.chaos.plan import load
from gleaner.chaos.run_orders import RunOrder
from gleaner.chaos.schedule import dump
from gleaner.chaos.tally import Broken, RunReport


def test_mutations_are_enough_and_named() -> None:
    assert len(MUTATIONS) >= 15
    assert len(BY_NAME) == len(MUTATIONS)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bug_fits_source_and_compiles(mutation: Mutation) -> None:
    by_module: dict[str, list[Edit]] = {}
    for edit in mutation.edits:
        by_module.setdefault(edit.module, []).append(edit)
    for module, edits in by_module.items():
        source, path = source_of(module)
        compile(changed(source, edits), str(path), "exec")
    assert set(mutation.caught_by) <= {check.name for check in CHECKS}
    assert set(mutation.faults) <= KINDS.keys()
    assert mutation.safeguard
    assert mutation.lead in ("", *LEADS)
    assert not (mutation.lead and mutation.faults)


def test_edit_that_no_longer_fits_is_reported() -> None:
    with pytest.raises(CannotPlant, match="occurs 0 times"):
        changed("a = 1\n", [Edit("m", "b = 2", "b = 3")])
    with pytest.raises(CannotPlant, match="occurs 2 times"):
        changed("a = 1\na = 1\n", [Edit("m", "a = 1", "a = 3")])
    with pytest.raises(CannotPlant, match="no such module"):
        source_of("gleaner.chaos.nowhere")


def test_bug_that_does_not_fit_source_is_not_hunted() -> None:
    unfit = replace(MUTATIONS[0], edits=(Edit("gleaner.transport.token_ring", "no such text", ""),))
    with pytest.raises(CannotPlant, match="occurs 0 times"):
        asyncio.run(hunt(unfit, seeds=1))


@pytest.mark.parametrize(("caught_by", "check"), [(("I7", "I8"), "I8"), (("I8",), "I8"), (("I7",), "I7")])
def test_hunt_lasts_until_the_check_that_is_named_alone(
    caught_by: tuple[str, ...], check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noticed = Broken(check="I8", at_s=1.0, text="first"), Broken(check="I7", at_s=2.0, text="later")

    async def reports(orders: Iterable[RunOrder], **_: object) -> AsyncIterator[RunReport]:
        for order in orders:
            until = [one.check == order.stop_at for one in noticed]
            last = until.index(True) + 1 if any(until) else 1
            yield RunReport(seed=order.seed, broken=noticed[:last])

    monkeypatch.setattr("gleaner.chaos.hunt.run_all", reports)
    assert asyncio.run(hunt(replace(MUTATIONS[0], caught_by=caught_by), seeds=1)).check == check


def test_imported_module_is_not_changed() -> None:
    with pytest.raises(CannotPlant, match="is imported already"):
        plant([Edit("gleaner.chaos.mutate", "class CannotPlant", "class Cannot")])


def test_planted_bug_changes_imports_and_nothing_on_disk() -> None:
    before, path = source_of("gleaner.transport.token_ring")
    code = (
        "from gleaner.chaos.mutate import plant\n"
        "from gleaner.chaos.mutations import BY_NAME\n"
        "plant(BY_NAME['unbounded token ring'].edits)\n"
        "from gleaner.transport.token_ring import SendRing\n"
        "ring = SendRing(1)\n"
        "ring.push('x'); ring.push('y')\n"
        "print(ring.full, ring.unacknowledged)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False 2"
    assert path.read_text() == before


@pytest.mark.parametrize("name", LEADS)
def test_lead_gives_one_bearable_schedule_per_seed(name: str) -> None:
    options = load("hunt").campaign.options
    drawn = {dump(lead(name, seed)) for seed in range(5)}
    assert len(drawn) == 5
    assert dump(lead(name, 3)) in drawn
    for seed in range(5):
        schedule = lead(name, seed)
        assert schedule.seed == seed
        assert all(fault.at_s >= options.begin_s for fault in schedule.faults)
        assert bearable(schedule.faults, Bounds()) == list(schedule.faults)
    assert name in {mutation.lead for mutation in MUTATIONS}


def test_hunt_uses_only_faults_that_lead_to_bug() -> None:
    loaded = load("hunt")
    narrowed = focused(loaded, 1, BY_NAME["no verification of chunks"])
    assert {kind_of(fault) for fault in narrowed.faults} == {"corrupt_chunk"}
    assert focused(loaded, 1, BY_NAME["acknowledge before commit"]) == loaded.schedule(1)
    led = BY_NAME["unbounded token ring"]
    assert focused(loaded, 1, led) == lead(led.lead, 1)


def test_table_shows_uncaught_bugs() -> None:
    first, second, third = MUTATIONS[:3]
    found = {
        first.name: HuntResult(name=first.name, seeds=3, check="I4", seed=2),
        second.name: HuntResult(name=second.name, seeds=40),
    }
    text = table(found, (first, second, third))
    assert "Of 3 planted bugs 1 are caught." in text
    assert f"| {first.name} | {first.safeguard} | everything | I4 | 3 |" in text
    assert "| everything | **nothing** | none in 40 |" in text
    assert "| everything | not hunted yet | - |" in text


def test_catch_is_kept_and_replaces_the_older_one(tmp_path: Path) -> None:
    file = tmp_path / "caught.toml"
    first, second = MUTATIONS[1].name, MUTATIONS[0].name
    write([HuntResult(name=first, seeds=9, check="I1", seed=8, at_s=1.5, text='a "word"')], file)
    write([HuntResult(name=second, seeds=40), HuntResult(name="a bug that is no more", seeds=1)], file)
    kept = write([HuntResult(name=first, seeds=2, check="I2", seed=1)], file)
    assert read(file) == kept
    assert list(kept) == [second, first]
    assert kept[first].check == "I2"


def test_table_is_between_marks_and_missing_marks_are_refused() -> None:
    page = "above\n<!-- hunt: begin -->\nold\n<!-- hunt: end -->\nbelow\n"
    made = put_in(page, "new\n")
    assert taken_out(made) == "new\n"
    assert made.startswith("above\n")
    assert made.endswith("below\n")
    with pytest.raises(ValueError, match="no <!-- hunt"):
        put_in("nothing here", "new\n")


def test_page_shows_what_was_caught() -> None:
    assert taken_out(PAGE.read_text(encoding="utf-8")) == table(read())
