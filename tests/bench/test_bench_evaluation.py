"""The runner of the evaluation on a grid of two small cells; synthetic segments."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from bench.evaluation import __main__ as command
from bench.evaluation import crosscheck, fidelity, figures, grid, page, pool, segments
from bench.evaluation.__main__ import table
from bench.evaluation.cells import Cell, colocated, undisturbed
from bench.evaluation.cells import segments as segment_cells
from bench.evaluation.claims import Claim, Results, all_claims
from bench.evaluation.crosscheck import Recorded
from bench.evaluation.runner import run
from bench.evaluation.setups import Around, setting
from bench.evaluation.simulated import CellResult, Look, StepLine, settings_hash, simulate
from bench.evaluation.store import Store
from bench.evaluation.this_machine import Machine
from gleaner.configs.schema import Config
from gleaner.sim.models.engine_cost import EngineCost
from gleaner.sim.models.fit import FitError
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.training_cost import TrainingCost
from gleaner.sim.shared_cores import CoreSharing, SharedCores

AROUND = Around(extra=(("tiny", ("rollout.prompts=8", "training.micro_batch_groups=2")),))
ALONE = Cell(kind="colocated", model="14b", seed=1, variant="tiny", limit=1024, steps=1)
THREE = Cell(kind="static", model="14b", seed=1, variant="tiny", hosts=3, limit=1024, steps=2)


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_synthetic_segment_has_the_statistics_of_the_paper(name: str) -> None:
    made, wanted = segments.statistics_of(segments.made(name)), segments.TABLE_5[name]
    assert made.mean == pytest.approx(wanted.mean, rel=segments.NEAR)
    assert (made.allocations, made.preemptions) == (wanted.allocations, wanted.preemptions)
    assert segments.made(name) == segments.made(name) != segments.made(name, seed=1)


def test_cell_names_are_unique() -> None:
    cells = [*colocated(["8b", "14b"], [1, 2]), *segment_cells(["8b"], "AB", [1], ["gleaner", "algorithm-1"])]
    assert len({cell.name for cell in [*cells, ALONE, THREE]}) == len(cells) + 2 == 10


def test_cell_settings_differ_where_cells_differ() -> None:
    cells = [*segment_cells(["8b", "14b"], "AB", [1, 2], ["gleaner", "no-seeding"]), ALONE, THREE]
    assert len({settings_hash(cell, setting(cell, AROUND)) for cell in cells}) == len(cells)


def test_stopped_sweep_continues_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in this process, so that a Ctrl-C can come between the two cells."""
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
    assert 0 < both[1].hosts <= 3.001
    assert both[0].hosts == 0
    assert store.read(THREE) == both[1]


def test_results_of_other_code_or_settings_are_ignored(tmp_path: Path) -> None:
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


def test_table_compares_segment_with_colocated_run_of_same_seed() -> None:
    assert table([]).row_count == 0


def result(cell: Cell, tokens_per_s: float, hosts: float = 0.0, steps: int = 2) -> CellResult:
    """As if a cell had been run: steps of 100 s."""
    lines = [
        StepLine(
            step=number + 1,
            begin_s=100.0 * number,
            step_s=100.0,
            seeding_s=60.0,
            waiting_s=0.0,
            training_s=40.0,
            weights_s=0.0,
            tokens=round(100 * tokens_per_s),
            t_seed_s=60.0,
            n_prem=6,
            hosts=hosts,
        )
        for number in range(steps)
    ]
    return CellResult(
        cell=cell,
        settings="",
        code="",
        ended="done",
        reason="",
        cpu_s=1.0,
        virtual_s=200.0,
        trace_hash="",
        migrations=0,
        killed=0,
        steps=lines,
        looks=[Look(t_s=50.0, hosts=6, serving=6, tokens_per_s=5.0)],
    )


def example() -> Results:
    """One seed: twice the throughput of the co-located run in every segment, with four hosts."""
    alone = [result(cell, 100.0) for cell in colocated(["14b"], [1])]
    hosts = [result(cell, 200.0, hosts=4.0) for cell in segment_cells(["14b"], "ABC", [1], ["gleaner"])]
    return Results([*alone, *hosts])


def ratio(claim: Claim) -> float | None:
    (figure,) = figures.figures_of([claim])
    return figure.ratio


def figure(unit: str, paper: float | None, *ours: float) -> figures.Figure:
    (found,) = figures.figures_of([Claim("R0", "some effect", unit, paper, list(ours))])
    return found


def test_gain_is_compared_with_gain_and_value_with_value() -> None:
    assert figure("%", 49.0, 28.0).ratio == pytest.approx(28 / 49)
    assert figure("x", 1.97, 1.69).ratio == pytest.approx(69 / 97)
    assert figure("", 5.0, 6.0).ratio == pytest.approx(1.2)
    assert figure("share", 30.0, 48.0).ratio == pytest.approx(1.6)
    assert figure("x", None, 2.0).ratio is None


def test_absent_effect_and_other_sign_are_flagged() -> None:
    nothing, mixed, other = figure("%", 6.0, 0.2), figure("%", 6.0, -3.0, 9.0), figure("%", 6.0, -4.0, -5.0)
    assert [(one.absent, one.opposite) for one in (nothing, mixed, other)] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    text = page.claims_text([nothing, other, figure("%", 6.0, 6.1)], {"R0": "because"})
    rows = [line.rsplit("|", 2)[1].strip() for line in text.splitlines() if line.startswith("| R0")]
    assert rows == ["**absent**", "**other sign** (-0.75)", "1.02"]
    assert "- **R0**: because" in text
    assert not figure("", 5.0, 0.0).absent


def test_segment_throughput_and_cost_are_compared_with_paper() -> None:
    claims = {claim.what: claim for claim in all_claims(example())}
    speed = claims["14B: throughput over veRL, mean of A, B, C"]
    assert (speed.id, speed.ours, speed.paper) == ("R1", [2.0], 1.97)
    assert ratio(speed) == pytest.approx(1.0 / 0.97)
    money = claims["14B: tokens a dollar over veRL, mean of A, B, C"]
    gain = 2.0 * 83.79 / (83.79 + 4 * 5.32)
    assert money.ours == pytest.approx([100 * (gain - 1)])
    assert ratio(money) == pytest.approx((gain - 1) / 0.49)
    even = claims["14B: spot discount at which a token costs as much as with veRL"]
    assert even.ours == pytest.approx([0.0])  # four hosts of two GPUs at the full price are one of eight
    share = claims["14B: share of rollout in a co-located step (paper: up to)"]
    assert share.ours == pytest.approx([60.0])
    assert not [claim for claim in claims.values() if claim.what.startswith("8B")]


def test_page_names_every_figure_far_from_the_paper(tmp_path: Path) -> None:
    file = tmp_path / "evaluation.md"
    results = example()
    page.write(file, results, all_claims(results))
    text = file.read_text()
    row = "14B: throughput over veRL, mean of A, B, C | 1.97 x | 2.00 x | 2.00 x to 2.00 x (1) | 1.03 |"
    assert f"| R1 | {row}" in text
    assert "- **R12**: " in text
    assert "- **R1**: " not in text
    assert "3 cells" not in text
    assert "4 cells" in text
    assert text.count(": begin -->") == text.count(": end -->") == 7
    page.reprint(file)
    assert file.read_text() == text


def test_sweep_is_compared_with_paper_at_chosen_instance_count() -> None:
    choosing = Cell(kind="chosen", model="14b", seed=1, limit=5000, hosts=10, steps=6)
    found = result(choosing, 200.0, hosts=10.0)  # all ten stay, six are requested
    (there,) = grid.second([found])
    assert (there.kind, there.hosts, there.limit, there.seed) == ("static", 6, 5000, 1)
    alone = Cell(kind="colocated", model="14b", seed=1, limit=5000, steps=4)
    results = Results([found, result(there, 150.0, hosts=6.0), result(alone, 100.0)])
    claims = {claim.what: claim.ours for claim in all_claims(results)}
    assert claims["14B, responses of at most 5,000: throughput over veRL"] == [1.5]
    assert claims["14B, responses of at most 5,000: instances"] == [6.0]


def test_step_events_depend_on_the_start_time() -> None:
    calm = [result(cell, 100.0, steps=5) for cell in undisturbed([1, 2])]
    after = list(grid.second(calm))
    assert {cell.kind for cell in after} == {"kill", "join", "restart"}
    assert {cell.at_s for cell in after if cell.kind == "kill"} == {500.0, 600.0}
    assert len({cell.name for cell in after}) == len(after)
    for cell in after:
        trace = setting(cell, AROUND).trace
        assert trace is not None
        assert max(event.t_s for event in trace.events) >= cell.at_s


def test_recorded_lengths_are_those_of_the_run() -> None:
    law = Recorded(median=20.0, lengths={7: 33})
    assert law.length(7, 1, 64) == 33
    assert law.length(8, 1, 64) == LengthLaw(median=20.0).length(8, 1, 64)
    assert law.scaled(1.0) is law
    with pytest.raises(ValueError, match="own tokens"):
        law.scaled(0.5)


def test_rehearsal_machine_is_as_slow_as_whole_job(monkeypatch: pytest.MonkeyPatch) -> None:
    (model,) = [one.steps[0] for one in [result(ALONE, 1.0, steps=1)]]

    def predicted(config: object, machine: Machine, lengths: object) -> list[StepLine]:
        """One second of each step is outside its parts."""
        return [msgspec.structs.replace(model, step_s=1.0 + machine.trainer.token_s)] * 4

    alone = TrainingCost(token_s=2.0, pair_s=0.0, micro_batch_s=0.5, step_s=0.1, copy_s=0.0, publish_s=0.0)
    off = FitError(median=0.0, p90=0.0, bias=0.0, fitted=1, held_back=1)
    machine = Machine(
        engine=EngineCost(step_s=0.001),
        engine_off=off,
        trainer=alone,
        trainer_off=off,
        crowding=CoreSharing(),
        start_s=0.0,
        prepare_s=0.0,
        score_s=0.0,
        prompt_tokens=(1, 2),
        sync_s=0.0,
    )
    monkeypatch.setattr(crosscheck, "predicted", predicted)
    measured = [msgspec.structs.replace(model, step_s=5.0)] * 4
    factor = crosscheck.rehearsed(Config(), machine, Recorded(), measured)  # type: ignore[arg-type]
    slow = crosscheck.slower(machine, factor)
    assert 1.0 + slow.trainer.token_s == pytest.approx(5.0, rel=0.03)
    assert slow.engine.step_s == pytest.approx(0.001 * factor)
    assert slow.trainer.micro_batch_s == pytest.approx(0.5 * factor)


def test_processes_sharing_cores_take_longer() -> None:
    crowd = SharedCores(CoreSharing(turns=(1.0, 1.5), beside_training=(1.2, 2.0), training=(1.0, 1.1, 1.6)))
    assert [crowd.enter() for _ in range(4)] == [1.0, 1.5, 2.25, 3.0]
    for _ in range(3):
        crowd.leave()
    assert crowd.enter(trains=True) == 1.1
    assert [crowd.enter() for _ in range(2)] == [2.0, 3.0]
    crowd.leave(trains=True)
    crowd.leave()
    assert crowd.enter(trains=True) == 1.6
    assert SharedCores().enter() == SharedCores().enter(trains=True) == 1.0


def test_controllers_are_compared_by_seed_in_throughput_and_cost() -> None:
    (ours,) = segment_cells(["14b"], "A", [1], ["gleaner"])
    (theirs,) = segment_cells(["14b"], "A", [1], ["algorithm-1"])
    (alone,) = segment_cells(["14b"], "B", [1], ["gleaner"])
    text = page.controllers_text(
        Results([result(ours, 110.0, hosts=5.0), result(theirs, 100.0, hosts=4.0), result(alone, 1.0)])
    )
    money = 100 * (1.1 * (83.79 + 4 * 5.32) / (83.79 + 5 * 5.32) - 1)
    (row,) = text.splitlines()[2:]
    assert row.startswith(f"| 14B | A | 1 | +10.0 % | +10.0 to +10.0 % | {money:+.1f} % |")
    assert row.endswith("| 4.0, 5.0 |")


def test_fidelity_names_missing_cells_and_the_mean_of_three_segments() -> None:
    capped = segment_cells(["8b"], "ABC", [1], ["capped"])
    alone = [result(cell, 100.0) for cell in colocated(["8b"], [1])]
    joined = [
        result(Cell(kind="join", model="14b", seed=1, variant=variant, at_s=500.0, steps=5), 1.0)
        for variant in ("gleaner", "no-continuous-lb")
    ]
    some = Results([*alone, *(result(cell, 170.0, hosts=4.0) for cell in capped), *joined])
    text = fidelity.text(some)
    money = 100 * (1.7 * 83.79 / (83.79 + 4 * 5.32) - 1)
    assert f"| 8B | A | capped | 1 | 1.70 x | {money:+.0f} % | 4.00 |" in text
    means = f"1.70 x (1.70 to 1.70) | {money:+.0f} % ({money:+.0f} to {money:+.0f}) | 4.00 (4.00 to 4.00)"
    assert f"| 8B | mean of A, B, C | capped | 1 | {means} |" in text
    assert "Not run: 8b A gleaner, 8b A paper-capped" in text
    assert "100 s with ContinuousLB and 100 s without it (+0.0 to +0.0 %, seeds: 1)" in text
    assert "three instances that join" in fidelity.text(Results([]))


@pytest.mark.parametrize(("given", "seeds"), [([], [1]), (["--seeds", "3"], [1, 2, 3])])
def test_fidelity_has_as_many_seeds_as_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], seeds: list[int]
) -> None:
    asked: list[int] = []

    def record(_run: grid.Run, wanted: Sequence[int]) -> list[CellResult]:
        asked.extend(wanted)
        return []

    monkeypatch.setattr(fidelity, "record", record)
    monkeypatch.setattr(sys, "argv", ["evaluation", "--fidelity", "--store", str(tmp_path), *given])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert (ended.value.code, asked) == (0, seeds)


def test_fidelity_cells_have_settings_of_their_own() -> None:
    wanted = [cell for cell in fidelity.first(1) if cell.kind != "colocated"]
    assert len({settings_hash(cell, setting(cell, AROUND)) for cell in wanted}) == len(wanted)
    small = setting(Cell(kind="colocated", model=fidelity.TAILS, seed=1, steps=1), AROUND)
    assert small.reserved.assumptions.memory_fraction == 0.4
    assert small.preemptible.assumptions.memory_fraction == 0.6


def test_join_is_repeated_without_load_balancing() -> None:
    cell = Cell(kind="join", model="14b", seed=1, steps=5)
    with_lb, without = fidelity.joins(result(cell, 100.0, steps=5))
    assert (with_lb.variant, without.variant) == ("gleaner", "no-continuous-lb")
    assert with_lb.at_s == without.at_s == 400.0
