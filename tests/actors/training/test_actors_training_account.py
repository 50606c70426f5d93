"""Account of a run: exact on a small history, and independent of its cuts."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.training.account import Meter, used_between
from gleaner.actors.training.records import AnyRecord, End, Node, Run, Sample, Step
from gleaner.actors.training.usage import ResourceUsage
from gleaner.configs.schema import Prices

PRICES = Prices(reserved_per_hour=8.0, preemptible_per_hour=2.0, currency="EUR")


def run(t_s: float = 0.0, reserved: int = 1) -> Run:
    return Run(t_s=t_s, run_id="r", seed=0, steps=9, config={"fleet": {"reserved": reserved}})


def node(t_s: float, name: str, event: str, devices: int = 1) -> Node:
    role = "reserved" if name.startswith("reserved") else "preemptible"
    return Node(t_s=t_s, node=name, role=role, event=event, devices=devices)  # type: ignore[arg-type]


def step(number: int, t_s: float, step_s: float = 10.0, tokens: int = 500) -> Step:
    return Step(
        t_s=t_s, step=number, reward=0.5, samples=4, tokens=tokens, seeding_s=1.0, waiting_s=2.0,
        training_s=4.0, weights_s=0.5, step_s=step_s, t_seed_s=1.0, n_prem=1, grad_norm=0.1, loss=0.0,
    )  # fmt: skip


def look(t_s: float, preemptible: int, busy: int | None, wasted: dict[str, int] | None = None) -> Sample:
    return Sample(
        t_s=t_s, step=1, reserved=1, preemptible=preemptible, serving=1, executing=0, pending=0,
        tokens_collected=int(10 * t_s), migrations=0, tokens_per_s=0.0, busy=busy, wasted=wasted or {},
    )  # fmt: skip


WHOLE: list[AnyRecord] = [
    run(),
    node(0, "reserved-1", "joined", devices=8),
    node(100, "spot-1", "joined", devices=2),
    look(100, 1, 1),
    node(150, "spot-2", "joined"),
    look(150, 2, 1, {"aborted": 3}),
    step(1, 190, step_s=90),
    node(200, "spot-1", "killed"),
    look(200, 1, 0, {"aborted": 5, "dropped": 2}),
    node(260, "spot-2", "drained"),
    node(280, "spot-2", "left"),
    step(2, 290, step_s=100),
    End(
        t_s=300, tokens_collected=3000, tokens_lost=0, tokens_generated_twice=1, requests_migrated=0, ok=True
    ),
]


def test_host_is_paid_from_join_to_end_by_device() -> None:
    (used,) = used_between(WHOLE, [(0, 300)])
    assert (used.reserved_s, used.reserved_devices_s) == (300, 2400)
    assert used.preemptible_s == 100 + 130
    assert used.preemptible_devices_s == 200 + 130
    reserved, preemptible = used.cost(PRICES)
    assert reserved == pytest.approx(300 / 3600 * 8)
    assert preemptible == pytest.approx(230 / 3600 * 2)


def test_device_time_is_reported_as_measured() -> None:
    (used,) = used_between(WHOLE, [(0, 300)])
    spent = {"seeding": 16, "waiting": 32, "training": 64, "weights": 8, "recovery": 0, "evaluation": 0}
    assert used.parts_s == spent
    assert used.looked_s == 50 * 2 + 50 * 3 + 80 * 1
    assert used.busy_s == 50 * 2 + 50 * 3 / 2
    assert used.wasted == {"aborted": 5, "dropped": 2}
    assert (used.trained, used.steps, used.collected, used.twice) == (1000, 2, 3000, 1)


def test_step_is_charged_with_the_hosts_of_its_time() -> None:
    first, second = used_between(WHOLE, [(100, 190), (190, 290)])
    assert (first.preemptible_s, first.steps, first.trained) == (90 + 40, 1, 500)
    assert (second.preemptible_s, second.steps, second.trained) == (10 + 90, 1, 500)
    assert first.wasted == {"aborted": 3}
    assert second.wasted == {"aborted": 2, "dropped": 2}


def test_drained_host_is_paid_until_its_drain() -> None:
    records: list[AnyRecord] = [run(), node(0, "spot-1", "joined"), node(60, "spot-1", "drained"), run(100)]
    (used,) = used_between(records, [(0, 200)])
    assert used.preemptible_s == 60


def test_spared_host_is_paid_all_the_time() -> None:
    records: list[AnyRecord] = [
        run(), node(0, "spot-1", "joined"), node(60, "spot-1", "drained"), node(80, "spot-1", "spared"),
        run(100),
    ]  # fmt: skip
    (used,) = used_between(records, [(0, 200)])
    assert used.preemptible_s == 100


def test_resume_ends_stays_and_repeated_step_counts_once() -> None:
    records = [run(), node(0, "spot-1", "joined"), step(1, 50), run(60), step(1, 90), step(2, 100)]
    (used,) = used_between(records, [(0, 100)])
    assert (used.preemptible_s, used.trained) == (60, 1000)


def test_older_history_is_counted_without_missing_fields() -> None:
    records = [run(), node(0, "spot-1", "joined"), look(10, 1, None), look(20, 1, None)]
    (used,) = used_between(records, [(0, 30)])
    assert (used.looked_s, used.busy_s, used.wasted) == (0, 0, {})


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.floats(0, 320), max_size=6))
def test_pieces_of_a_run_add_up_to_the_whole(seed: int, cuts: list[float]) -> None:
    rng = random.Random(seed)
    records: list[AnyRecord] = [run(reserved=rng.randint(1, 2))]
    t_s = 0.0
    for number in range(1, 30):
        t_s += rng.uniform(0, 20)
        name = f"spot-{rng.randrange(3)}"
        kind = rng.randrange(4)
        if kind == 0:
            records.append(step(number, t_s))
        elif kind == 1:
            records.append(look(t_s, 3, rng.randrange(4), {"aborted": number}))
        else:
            records.append(node(t_s, name, rng.choice(["joined", "killed", "left"]), rng.randint(1, 8)))
    marks = [0.0, *sorted(cuts), 640.0]
    whole, *pieces = used_between(records, [(0.0, 640.0), *pairwise(marks)])
    for name in ("reserved_s", "preemptible_s", "preemptible_devices_s", "busy_s", "looked_s"):
        assert sum(getattr(one, name) for one in pieces) == pytest.approx(getattr(whole, name))
    assert sum(one.trained for one in pieces) == whole.trained


def test_live_account_equals_the_report() -> None:
    meter = Meter()
    for record in WHOLE:
        meter.observe(record)
    (used,) = used_between(WHOLE, [(0, 300)])
    assert meter.used == used
    assert used.since(ResourceUsage()) == used
