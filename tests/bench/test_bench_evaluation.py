"""The evaluation's runner on a grid of two small cells; its made segments."""

from pathlib import Path

import pytest

from bench.evaluation import pool, segments
from bench.evaluation.__main__ import table
from bench.evaluation.cells import Cell, colocated
from bench.evaluation.cells import segments as segment_cells
from bench.evaluation.runner import run
from bench.evaluation.setups import Around, setting
from bench.evaluation.simulated import CellResult, settings_hash, simulate
from bench.evaluation.store import Store

AROUND = Around(extra=(("tiny", ("rollout.prompts=8", "training.micro_batch_groups=2")),))
ALONE = Cell(kind="colocated", model="14b", seed=1, variant="tiny", limit=1024, steps=1)
THREE = Cell(kind="static", model="14b", seed=1, variant="tiny", hosts=3, limit=1024, steps=2)


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_a_made_segment_has_the_statistics_of_the_papers_table(name: str) -> None:
    made, wanted = segments.statistics_of(segments.made(name)), segments.TABLE_5[name]
    assert made.mean == pytest.approx(wanted.mean, rel=segments.NEAR)
    assert (made.allocations, made.preemptions) == (wanted.allocations, wanted.preemptions)
    assert segments.made(name) == segments.made(name) != segments.made(name, seed=1)


def test_cells_have_names_of_their_own() -> None:
    cells = [*colocated(["8b", "14b"], [1, 2]), *segment_cells(["8b"], "AB", [1], ["gleaner", "no-memory"])]
    assert len({cell.name for cell in [*cells, ALONE, THREE]}) == len(cells) + 2 == 10


def test_settings_differ_where_cells_do() -> None:
    cells = [*segment_cells(["8b", "14b"], "AB", [1, 2], ["gleaner", "no-seeding"]), ALONE, THREE]
    assert len({settings_hash(cell, setting(cell, AROUND)) for cell in cells}) == len(cells)


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, so that a Ctrl-C can come between the two cells."""
    simulated: list[Cell] = []
    stops = [1]

    def in_turn(cells, around, code, workers, finished):  # type: ignore[no-untyped-def]
        for cell in cells:
            if stops == [len(simulated)]:
                stops.clear()
                raise KeyboardInterrupt
            simulated.append(cell)
            finished(simulate(cell, around, code))

    monkeypatch.setattr(pool, "run", in_turn)
    store = Store(tmp_path, AROUND)
    first = run([ALONE, THREE], store, AROUND, 1, fresh=False)
    assert [one.cell for one in first] == [ALONE]
    both = run([ALONE, THREE], store, AROUND, 1, fresh=False)
    assert simulated == [ALONE, THREE]
    assert [one.cell for one in both] == [ALONE, THREE]
    assert all(one.ok and one.ended == "done" for one in both)
    assert min(both[0].tokens_per_s, both[1].tokens_per_s) > 0
    assert 0 < both[1].hosts <= 3
    assert both[0].hosts == 0
    assert store.read(THREE) == both[1]


def test_results_of_other_code_or_settings_do_not_count(tmp_path: Path) -> None:
    made = setting(ALONE, AROUND)
    store = Store(tmp_path, AROUND)
    fields = dict(
        cell=ALONE, ended="done", reason="", cpu_s=1.0, virtual_s=1.0, trace_hash="", migrations=0, killed=0
    )
    good = CellResult(**fields, settings=settings_hash(ALONE, made), code=store.code, steps=[], looks=[])
    store.write(good)
    assert store.read(ALONE) == good
    store.code = "newer"
    assert store.read(ALONE) is None
    assert Store(tmp_path, AROUND, any_code=True).read(ALONE) == good
    other = Around(extra=(("tiny", ("rollout.prompts=16",)),))
    assert Store(tmp_path, other, any_code=True).read(ALONE) is None


def test_the_table_holds_a_segment_against_the_colocated_run_of_its_seed() -> None:
    assert table([]).row_count == 0
