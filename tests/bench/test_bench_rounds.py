"""The page on rounds: arithmetic of a period beside plain steps, the cells' settings, and one tiny job."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.evaluation.cells import Cell
from bench.evaluation.rollpacker import chosen, composition, grid, known_lengths, page, setups, wide_tail
from bench.evaluation.rollpacker.periods import Found, in_common, mean_reward, shares, whole_steps
from bench.evaluation.setups import Around, setting
from bench.evaluation.simulated import CellResult, StepLine, settings_hash, simulate
from gleaner.actors.training.rounds import RoundRule, period_steps
from gleaner.rlctl.round_table import PeriodRow, RoundRow
from gleaner.sim.models.engine_cost import EngineCost
from gleaner.sim.models.tails import TailedLaw

AROUND = Around()
PLAIN = Cell(kind="colocated", model="14b-16k", variant="off", seed=1, steps=3)
TAIL = Cell(kind="colocated", model="14b-16k", variant="tail", seed=1, steps=3)


def step(number: int, step_s: float, rollout_s: float, tokens: int, reward: float) -> StepLine:
    return StepLine(
        step=number,
        begin_s=0.0,
        step_s=step_s,
        seeding_s=rollout_s,
        waiting_s=0.0,
        training_s=step_s - rollout_s,
        weights_s=0.0,
        tokens=tokens,
        t_seed_s=0.0,
        n_prem=0,
        hosts=0.0,
        samples=10,
        reward=reward,
    )


def made(cell: Cell, steps: list[StepLine], kinds: str = "", aborted: int = 0) -> CellResult:
    """As if a cell had been run; kinds: "s" or "l" for each step; the last long round ends the one period."""
    names = ["short" if kind == "s" else "long" for kind in kinds]
    last = kinds.rfind("l") + 1
    rounds = [
        RoundRow(
            step=number,
            round=name,
            launched=12,
            counted=10,
            over=0,
            deferred=2 if name == "short" else 0,
            queued=0,
            edge=5,
            longest=9,
            step_s=1.0,
            aborted_tokens=aborted if name == "short" else 0,
            reward=None,
        )
        for number, name in enumerate(names, 1)
    ]
    period = PeriodRow(
        first=1,
        last=last,
        short=kinds[:last].count("s"),
        long=1,
        step_s=1.0,
        reward=None,
        trained_length=1.0,
        launched_length=1.0,
        bias=1.2,
        oldest_age=2,
        aborted_tokens=0,
        whole=True,
    )
    return CellResult(
        cell=cell,
        settings="",
        code="",
        ended="done",
        reason="",
        cpu_s=60.0,
        virtual_s=3600.0,
        trace_hash="",
        migrations=0,
        killed=0,
        steps=steps,
        looks=[],
        rounds=rounds,
        periods=[period] if last else [],
    )


PLAIN_STEPS = [
    step(1, 100.0, 80.0, 900, 0.5),
    step(2, 100.0, 60.0, 900, 0.5),
    step(3, 100.0, 70.0, 1200, 0.2),
]
TAIL_STEPS = [step(1, 40.0, 35.0, 500, 0.6), step(2, 40.0, 35.0, 500, 0.6), step(3, 120.0, 105.0, 2000, 0.0)]


def test_period_is_compared_with_as_many_plain_steps() -> None:
    found = shares(made(TAIL, TAIL_STEPS, "ssl", aborted=500), made(PLAIN, PLAIN_STEPS))
    assert found.steps == 3
    assert found.gain == pytest.approx(100 / (200 / 3))
    assert (found.short, found.long) == (pytest.approx(0.5), pytest.approx(1.5))
    assert (found.short_step, found.long_step) == (pytest.approx(0.4), pytest.approx(1.2))
    assert found.aborted == pytest.approx(1000 / 4000)
    assert found.length == pytest.approx(1.0)
    assert found.reward == pytest.approx(0.4 - 0.4)
    assert found.shown == 1.2
    assert found.periods == ((2, 1),)


def test_steps_after_the_last_long_round_are_left_out() -> None:
    tail = made(TAIL, [*TAIL_STEPS[:2], step(3, 500.0, 500.0, 1, 0.0)], "sls")
    assert [one.step for one in whole_steps(tail)] == [1, 2]
    found = shares(tail, made(PLAIN, PLAIN_STEPS))
    assert found.gain == pytest.approx(100 / 40)
    assert found.length == pytest.approx(1000 / 1800)
    assert found.reward == pytest.approx(0.1)


def test_later_periods_can_be_left_out() -> None:
    tail = made(TAIL, TAIL_STEPS, "slsl")
    first = msgspec.structs.replace(tail.periods[0], last=2)
    both = [first, msgspec.structs.replace(first, first=3, last=3, bias=9.0)]
    tail = msgspec.structs.replace(tail, periods=both)
    found = shares(tail, made(PLAIN, PLAIN_STEPS), until=2)
    assert (found.steps, found.shown) == (2, 1.2)
    assert found.gain == pytest.approx(100 / 40)


def test_rows_are_compared_over_the_seeds_that_all_of_them_have() -> None:
    one = shares(made(TAIL, TAIL_STEPS, "ssl"), made(PLAIN, PLAIN_STEPS))
    assert in_common([{1: one, 2: one}, {}, {2: one}]) == [{2: one}, {}, {2: one}]
    assert in_common([{}, {}]) == [{}, {}]


def test_job_that_defers_nothing_counts_with_all_its_steps() -> None:
    thrown = made(TAIL, TAIL_STEPS, "sss")
    thrown = msgspec.structs.replace(
        thrown, rounds=[msgspec.structs.replace(one, deferred=0) for one in thrown.rounds]
    )
    found = shares(thrown, made(PLAIN, PLAIN_STEPS))
    assert (found.steps, found.long, found.shown, found.periods) == (3, None, None, ())


def test_period_without_as_many_plain_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="3 steps of whole periods and 2 plain ones"):
        shares(made(TAIL, TAIL_STEPS, "ssl"), made(PLAIN, PLAIN_STEPS[:2]))
    with pytest.raises(ValueError, match="0 steps of whole periods"):
        shares(made(TAIL, TAIL_STEPS, "sss"), made(PLAIN, PLAIN_STEPS))


def test_reward_is_the_mean_over_responses() -> None:
    few = msgspec.structs.replace(step(1, 1.0, 1.0, 10, 1.0), samples=1)
    assert mean_reward([few, step(2, 1.0, 1.0, 10, 0.0)]) == pytest.approx(1 / 11)


def test_page_has_what_was_run_and_counts_what_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = grid.alone(grid.LARGE, "off", 1, grid.STEPS)
    tail = grid.alone(grid.LARGE, "tail", 1, grid.STEPS)
    found = Found([made(plain, PLAIN_STEPS), made(tail, TAIL_STEPS, "ssl", aborted=500)])
    file = tmp_path / "page.md"
    for slow in ("wide_text", "known_text"):  # they take seconds
        monkeypatch.setattr(page, slow, lambda: "")
    page.write(file, found)
    text = file.read_text()
    assert (
        "| 14B, 16,384, 32 (TP 2) | 3, 1 | 1.48 x | 1.50 x | - | 70% (76%) | 0.50 | 1.50 | 25% | 1.20 |"
        in text
    )
    assert "| 1.25 | 4 + 1 | 2 + 1 | 1, 1 | 1.50 x |" in text
    assert "| 5 % (assumed elsewhere) | 3, 1 | 1.50 x |" in text
    wanted = {cell for seed in grid.SEEDS for cell in grid.cells(seed)}
    assert f"2 cells, 2 simulated hours, 2 minutes of one core's time. {len(wanted) - 2} cells" in text
    assert "7B" not in text
    assert text.count(": begin -->") == text.count(": end -->") == 11


AUTO = grid.chosen_of(grid.LARGE, "auto", 1)


def chosen_cell(kinds: str) -> CellResult:
    """A job of steps of 50 s with a short and of 200 s with a long round, after two whole ones of 100 s."""
    seconds = [100.0, 100.0, *(50.0 if kind == "s" else 200.0 for kind in kinds)]
    steps = [step(number, one_s, one_s, 100, 0.5) for number, one_s in enumerate(seconds, 1)]
    rounds = [
        msgspec.structs.replace(one, step=one.step + 2, launched=15 if one.round == "short" else 10)
        for one in made(AUTO, steps, kinds).rounds
    ]
    return msgspec.structs.replace(made(AUTO, steps), rounds=rounds)


def period_of(first: int, last: int) -> PeriodRow:
    whole = made(AUTO, TAIL_STEPS, "ssl").periods[0]
    return msgspec.structs.replace(whole, first=first, last=last, short=last - first, long=1)


def test_settled_steps_of_rounds_by_prediction_are_those_of_whole_periods() -> None:
    auto = msgspec.structs.replace(chosen_cell("sslsl"), periods=[period_of(3, 5), period_of(6, 7)])
    found = chosen.chosen(auto, made(PLAIN, PLAIN_STEPS))
    assert found is not None
    assert found.steps == 7
    assert found.every == pytest.approx(100 / (750 / 7))
    assert found.settled == pytest.approx(1.0), "the last period was cut short by the end of the job"
    assert found.factor == 1.5
    only = chosen.chosen(chosen_cell("s"), made(PLAIN, PLAIN_STEPS))
    assert only is not None
    assert only.settled == 1.0, "without a whole period its whole steps are"
    assert chosen.chosen(made(TAIL, TAIL_STEPS[:1], "s"), made(PLAIN, PLAIN_STEPS)) is None


def test_job_that_stays_whole_counts_with_all_its_steps() -> None:
    found = chosen.chosen(chosen_cell(""), made(PLAIN, PLAIN_STEPS))
    assert found is not None
    assert (found.settled, found.factor) == (1.0, None)


def test_table_of_rounds_by_prediction_has_what_was_run(tmp_path: Path) -> None:
    auto = msgspec.structs.replace(chosen_cell("ssl"), periods=[period_of(3, 5)])
    plain = made(grid.alone(grid.LARGE, "off", 1, grid.STEPS), PLAIN_STEPS)
    text = chosen.chosen_text(Found([auto, plain]))
    assert text.splitlines()[2:] == ["| 14B, 16,384 | 1 | - | 1.00 x | 1.00 x | - | - | - |"]
    tail = made(grid.alone(grid.LARGE, "tail", 1, grid.STEPS), TAIL_STEPS, "ssl")
    tail = msgspec.structs.replace(tail, periods=[msgspec.structs.replace(tail.periods[0], short=10)])
    assert "| 5 % | - | 1.50 x | - | - | - |" in chosen.factors_text(Found([tail, plain]))


def test_composition_compares_rounds_with_none_in_the_same_place() -> None:
    def run(place: str, variant: str, step_s: float) -> CellResult:
        some = [step(number, step_s, step_s / 2, 100, 0.5) for number in (1, 2)]
        kinds = "sl" if variant == composition.TAIL else ""
        return made(composition.cell(place, variant, 1), some, kinds)

    found = Found(
        [
            run(composition.ALONE, composition.OFF, 40.0),
            run(composition.ALONE, composition.TAIL, 20.0),
            run("A", composition.OFF, 15.0),
            run("A", composition.TAIL, 10.0),
            run("A", composition.AUTO, 12.0),
        ]
    )
    alone, segment = composition.text(found).splitlines()[2:]
    assert alone.startswith("| 8 reserved devices, no instances | 2, 1 | 0.0 | 2.00 x | 0.50 | 0.50 |")
    assert alone.endswith("| - | - | 2.00 x |")
    assert segment.startswith("| segment A | 2, 1 | 0.0 | 1.50 x |")
    assert segment.endswith("| 1.25 x | 1.25 x | 4.00 x |")


def test_composition_has_the_lengths_of_rollpacker_beside_instances() -> None:
    wanted = list(composition.cells(1))
    assert len({settings_hash(cell, setting(cell, AROUND)) for cell in wanted}) == len(wanted)
    alone, beside = (
        setting(composition.cell(place, "gleaner", 1), AROUND) for place in composition.PLACES[:2]
    )
    assert isinstance(beside.job_model.law, TailedLaw)
    assert beside.job_model.law == setups.law_of(16_384, setups.HARD)
    assert beside.config.rollout.max_new_tokens == 16_384 // 128  # tokens of messages
    assert (alone.config.fleet.n_prem_max, beside.config.fleet.n_prem_max) == (0, 10)


def test_table_of_returning_problems_compares_the_same_draws() -> None:
    without, with_history = (
        made(grid.returning(20, variant, 1), TAIL_STEPS, "ssl", aborted)
        for variant, aborted in zip(grid.RETURNING[20], (300, 150), strict=True)
    )
    faster = [msgspec.structs.replace(one, step_s=one.step_s / 2) for one in with_history.steps]
    text = chosen.returning_text(Found([without, msgspec.structs.replace(with_history, steps=faster)]))
    assert text.splitlines()[2:] == ["| 20 % | 1.375 | 66.7 s | 20% | 1.25 | 33.3 s | 10% | 2.00 x |"]
    assert len(chosen.returning_text(Found([without])).splitlines()) == 2


def test_engines_decode_until_a_share_is_left() -> None:
    cost = EngineCost(weights_s=0.01, row_s=0.001)
    ends, begun = np.array([100.0, 200.0, 1000.0, 1000.0]), np.zeros(4)
    two = wide_tail.Engines(cost, 2)
    seconds, made = two.until(ends, begun, 2)
    assert list(made) == [100.0, 200.0, 200.0, 200.0]
    assert seconds == pytest.approx(100 * 0.012 + 100 * 0.0115)
    rest_s, made = two.until(ends, made, 0)
    assert rest_s == pytest.approx(800 * 0.011)
    assert list(made) == list(ends)
    many = np.full(2 * wide_tail.SLOTS, 10.0)
    full_s, _ = wide_tail.Engines(cost, 1).until(many, np.zeros_like(many), 0)
    assert full_s == pytest.approx(2 * 10 * (0.01 + 0.256)), "requests beyond the slots wait"


def test_tail_that_ends_together_leaves_nothing_to_move() -> None:
    whole_s, left, off = wide_tail.change("7b-8k", 0.05)
    assert whole_s > 0
    assert (left, off) == (0, None)
    assert (wide_tail.long_round("7b-8k") >= 8192).mean() > 0.05


def test_spread_names_the_range_only_where_it_is_seen() -> None:
    assert page.spread([1.0, 1.001], ".2f", " x") == "1.00 x"
    assert page.spread([1.0, 2.0, None], ".1f") == "1.5 (1.0 to 2.0)"
    assert page.spread([None], ".1f") == "-"


def test_every_cell_has_a_name_and_settings_of_its_own() -> None:
    wanted = set(grid.cells(1))
    assert len({cell.name for cell in wanted}) == len(wanted)
    assert len({settings_hash(cell, setting(cell, AROUND)) for cell in wanted}) == len(wanted)
    hard = setting(grid.swept(20, "tail", 1), AROUND).job_model.law
    assert isinstance(hard, TailedLaw)
    assert hard.hard == 0.2
    assert setting(grid.on_few_devices("tail", 1), AROUND).reserved.devices == 8


def test_lengths_are_those_that_the_paper_gives() -> None:
    law = setups.law_of(16_384, 0)
    lengths = sorted(law.length(n, n // 8, 16_384) for n in range(8000))
    assert 755 <= lengths[6000] <= 1100
    assert 25 <= 16_384 / lengths[4000] <= 32


@pytest.mark.parametrize(
    ("variant", "period"), [("tail", (4, 1)), ("tail-1.125", (8, 1)), ("tail-1.5", (2, 1))]
)
def test_stated_periods_follow_from_the_rule(variant: str, period: tuple[int, int]) -> None:
    made_of = setting(Cell(kind="colocated", model="14b-16k", variant=variant, seed=1, steps=9), AROUND)
    prompts, samples = 128, 8
    launched = made_of.config.rounds.launched(prompts, samples)
    rule = RoundRule(prompts, samples, *launched, steps=9)
    assert period_steps(rule) == sum(period) == sum(page.EXPECTED[variant])


def tiny(variant: str, monkeypatch: pytest.MonkeyPatch, steps: int = 5) -> CellResult:
    """A cell with 8 prompts of 2 samples, responses of at most 2,048 tokens, on two devices."""
    small = ("rollout.prompts=8", "rollout.samples=2", "training.micro_batch_groups=4")
    monkeypatch.setattr(setups, "COMMON", (*setups.COMMON, *small))
    model = replace(setups.MODELS["7b-8k"], devices=2, limit=2048)
    monkeypatch.setattr(setups, "MODELS", {**setups.MODELS, "7b-8k": model})
    cell = Cell(kind="colocated", model="7b-8k", variant=variant, seed=1, steps=steps, hard=20)
    return simulate(cell, AROUND, "")


def test_tiny_period_trains_the_samples_of_the_plain_job(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, tail = tiny("off", monkeypatch), tiny("tail", monkeypatch)
    assert plain.ok
    assert tail.ok
    found = shares(tail, plain)
    assert found.periods == ((4, 1),)
    assert found.length == 1.0
    assert found.reward == pytest.approx(0.0, abs=1e-12)
    assert 0 < found.aborted < 1
    assert found.short is not None
    assert found.long is not None
    assert found.short < 1 < found.long
    assert max(one.longest for one in tail.rounds) <= 2048
    assert any(one.edge > 100 for one in tail.rounds)  # tokens of the model, not of messages


def test_tiny_job_launches_what_a_prediction_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    auto = tiny("auto-model", monkeypatch, steps=12)
    assert auto.ok
    kinds = [one.round for one in auto.rounds]
    assert kinds[0] == "plain"
    assert {"short", "long"} <= set(kinds)
    assert len({one.launched for one in auto.rounds if one.round == "short"}) > 1


def test_known_lengths_place_the_longest_first_where_the_fewest_tokens_are() -> None:
    known = np.array([1.0, 7.0, 2.0, 6.0, 4.0])
    assert [sorted(place.tolist()) for place in known_lengths.placed(known, 2)] == [[0, 1, 2], [3, 4]]
    engines = wide_tail.Engines(EngineCost(weights_s=0.0, row_s=0.01), 2)
    apart = known_lengths.seconds(engines, known, known_lengths.placed(known, 2))
    assert apart == pytest.approx(0.1)  # ten tokens each
    together = known_lengths.seconds(engines, known, [np.arange(5), np.arange(0)])
    assert together == pytest.approx(0.2)


def test_even_load_bounds_what_known_lengths_gain() -> None:
    _, changes = known_lengths.gains("14b-16k", 20)
    first, mean, every, even = changes
    assert even <= every + 0.005 <= min(first, mean) + 0.005 <= 0.01
