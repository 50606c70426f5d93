"""Campaigns: contents, validity, sums over runs, and workers.

A worker never loses a run.
"""

import asyncio
from pathlib import Path

import msgspec
import pytest

from gleaner.chaos.campaign import Minimal, as_json, first_broken
from gleaner.chaos.coverage import BY_NAME, PATHS, never_taken, taken
from gleaner.chaos.faults import KINDS, MACHINE_KINDS, KillProcess
from gleaner.chaos.hang_detector import HangDetector, Sample
from gleaner.chaos.plan import BadCampaign, Campaign, Loaded, load, names, parse_seeds
from gleaner.chaos.run_orders import RunOrder
from gleaner.chaos.schedule import Schedule
from gleaner.chaos.tally import Broken, RunReport, hash_of, tally
from gleaner.chaos.workers import Worker, run_all
from gleaner.configs.schema import Config

ABOUT = 'about = "x"\n'


def loaded(**fields: object) -> Loaded:
    campaign = msgspec.convert({"about": "x", **fields}, Campaign)
    return Loaded(name="test", campaign=campaign, config=Config(), traces={})


def test_every_packaged_campaign_loads_and_draws() -> None:
    assert set(names()) == {
        "ci",
        "gang",
        "gateway",
        "hunt",
        "hunt-ahead",
        "hunt-cancelled",
        "hunt-gateway",
        "hunt-kept",
        "hunt-published",
        "hunt-sampling",
        "hunt-shared",
        "hunt-singles",
        "hunt-unscored",
        "nightly",
        "machines",
        "pipelines",
        "rewards",
        "rounds",
        "singles",
        "soak",
        "stairs",
        "widths",
    }
    for name in names():
        found = load(name)
        assert found.schedule(3) == found.schedule(3)
        assert any(found.schedule(seed).faults for seed in range(5))
    ci = load("ci")
    assert len(parse_seeds(ci.campaign.seeds)) >= 600
    assert len(parse_seeds(load("nightly").campaign.seeds)) >= 20_000
    elsewhere = {"fail_load", "foreign_result"}  # the path "load again"; campaigns with reward hosts
    assert set(ci.campaign.wanted_faults) == set(KINDS) - elsewhere - MACHINE_KINDS
    assert "load again" in ci.campaign.paths
    assert len(ci.campaign.paths) > 20


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seeds = '0:5'", "missing required field `about`"),
        (f"{ABOUT}seeds = 'five'", "expected A:B"),
        (f"{ABOUT}seeds = '5:5'", "names no seed"),
        (f"{ABOUT}paths = ['levitation']", "no recovery path levitation"),
        (f"{ABOUT}faults = ['meteor']", "there is no meteor"),
        (f"{ABOUT}[options]\nkinds = ['meteor']", "there is no meteor"),
        (f"{ABOUT}[settings.rollout]\nprompt = 4", "settings: rollout.prompt"),
        (f"{ABOUT}traces = ['nowhere.csv']", "nowhere.csv"),
        ("[[", "not valid TOML"),
    ],
)
def test_invalid_campaign_is_refused_with_the_reason(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(BadCampaign) as refused:
        load(str(file))
    assert problem in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_unknown_campaign_error_lists_the_known_ones() -> None:
    with pytest.raises(
        BadCampaign,
        match="there are ci, gang, gateway, hunt, hunt-ahead, hunt-cancelled, hunt-gateway, hunt-kept, "
        "hunt-published, hunt-sampling, hunt-shared, hunt-singles, hunt-unscored, machines, nightly, "
        "pipelines, rewards, rounds, singles, soak, stairs, widths",
    ):
        load("nope")


def test_campaign_is_valid_only_with_every_fault_and_path() -> None:
    plan = loaded(faults=["reset", "freeze"], paths=["migration", "link re-send"])
    runs = [
        RunReport(seed=1, fired={"reset": 2}, counts={"requests.migrated_tokens": 3}),
        RunReport(seed=0, fired={"freeze": 1}, missed={"reset": 1}, counts={"links.resent": 1}),
    ]
    whole = tally(plan, "0:2", runs, 1.0)
    assert (whole.valid, whole.ok, whole.violations) == (True, True, 0)
    assert whole.fired == {"freeze": 1, "reset": 2}
    assert [run.seed for run in whole.results] == [0, 1]
    half = tally(plan, "0:1", runs[:1], 1.0)
    assert (half.valid, half.never_fired, half.never_taken) == (False, ["freeze"], ["link re-send"])
    assert tally(plan, "0:2", runs[:1], 1.0, whole=False).valid


def test_campaign_is_invalid_when_a_fault_shape_never_came() -> None:
    plan = loaded(faults=["partition"])
    one_way = RunReport(seed=0, fired={"partition": 3}, shapes={"partition: one way": 3})
    assert tally(plan, "0:1", [one_way], 1.0).never_fired == ["partition: both ways"]
    both = RunReport(seed=1, fired={"partition": 1}, shapes={"partition: both ways": 1})
    whole = tally(plan, "0:2", [one_way, both], 1.0)
    assert whole.valid
    assert whole.shapes == {"partition: both ways": 1, "partition: one way": 3}


def test_violation_fails_campaign_and_no_run_is_no_success() -> None:
    broken = RunReport(seed=4, broken=(Broken(check="I2", at_s=3.0, text="lost"),))
    results = tally(loaded(), "4:6", [broken, RunReport(seed=5)], 1.0)
    assert not results.ok
    assert results.violations == 1
    assert not tally(loaded(), "4:6", [], 1.0).ok


def test_campaign_hash_distinguishes_histories_not_arrival_order() -> None:
    one, other = RunReport(seed=1, trace_hash="aa"), RunReport(seed=2, trace_hash="bb")
    plan = loaded()
    assert (
        tally(plan, "1:3", [one, other], 1.0).trace_hash == tally(plan, "1:3", [other, one], 9.0).trace_hash
    )
    changed = msgspec.structs.replace(other, trace_hash="bc")
    assert hash_of([one, other]) != hash_of([one, changed])


def test_first_seed_of_each_broken_check_is_shrunk() -> None:
    def run(seed: int, check: str) -> RunReport:
        return RunReport(seed=seed, broken=(Broken(check=check, at_s=0.0, text=""),))

    runs = [run(9, "I1"), run(3, "I1"), run(5, "I8"), RunReport(seed=1), run(6, "I2"), run(7, "I9")]
    assert [(it.seed, it.broken[0].check) for it in first_broken(runs)] == [(3, "I1"), (5, "I8"), (6, "I2")]


def test_json_has_tally_and_minimal_schedules() -> None:
    schedule = Schedule(seed=3, faults=(KillProcess(at_s=1.0, host="head", process="rollout"),))
    raw = as_json(
        tally(loaded(), "0:1", [RunReport(seed=0)], 1.0), [Minimal(3, "I1", schedule, 12, minimal=True)]
    )
    tree = msgspec.json.decode(raw)
    assert {"campaign", "ok", "valid", "fired", "paths", "trace_hash", "results", "minimal"} <= tree.keys()
    assert tree["minimal"][0]["faults"][0]["kind"] == "kill_process"
    assert tree["results"][0]["seed"] == 0


def test_path_names_are_unique_and_any_count_takes_one() -> None:
    assert len(BY_NAME) == len(PATHS)
    assert len({name for path in PATHS for name in path.counts}) >= len(PATHS)
    path = PATHS[0]
    assert taken({path.counts[0]: 4})[path.name] == 4
    assert never_taken({path.counts[0]: 4}, [path.name, PATHS[1].name]) == [PATHS[1].name]
    with pytest.raises(KeyError):
        never_taken({}, ["levitation"])


class Tame(Worker):
    """A worker that runs a line of Python instead."""

    def __init__(self, code: str, run_s: float = 5.0) -> None:
        super().__init__(run_s)
        self._argv = [self._argv[0], "-c", code]


ANSWERS = (
    "import sys, json\n"
    "for line in sys.stdin: print(json.dumps({'seed': json.loads(line)['seed'], 'ended': 'done'}), "
    "flush=True)"
)
DIES_AT_TWO = (
    "import sys, json\n"
    "for line in sys.stdin:\n"
    "    seed = json.loads(line)['seed']\n"
    "    if seed == 2: sys.stderr.write('out of luck'); sys.exit(3)\n"
    "    print(json.dumps({'seed': seed}), flush=True)"
)


async def test_worker_handles_one_order_after_the_other() -> None:
    worker = Tame(ANSWERS)
    results = [await worker.ask(RunOrder(campaign="x", seed=seed)) for seed in range(3)]
    await worker.end()
    assert [run.seed for run in results] == [0, 1, 2]
    assert all(run.ok for run in results)


async def test_dead_worker_is_reported_with_last_output_and_replaced() -> None:
    worker = Tame(DIES_AT_TWO)
    results = [await worker.ask(RunOrder(campaign="x", seed=seed)) for seed in range(1, 4)]
    await worker.end()
    assert [run.ended for run in results] == ["done", "crashed", "done"]
    assert "out of luck" in results[1].broken[0].text
    assert results[1].broken[0].check == "I8"


@pytest.mark.parametrize(
    ("code", "problem"),
    [("import time; time.sleep(600)", "blocked for"), ("while True: pass", "of processor time")],
)
async def test_hung_worker_is_killed_and_its_run_broken(
    monkeypatch: pytest.MonkeyPatch, code: str, problem: str
) -> None:
    for limit_s in ("START_S", "BLOCKED_S", "LOOK_S"):
        monkeypatch.setattr(f"gleaner.chaos.workers.{limit_s}", 0.2)
    worker = Tame(code, run_s=0.2)
    results = await worker.ask(RunOrder(campaign="x", seed=7))
    assert (results.seed, results.ended) == (7, "hung")
    assert problem in results.broken[0].text
    await worker.end()


def test_hang_detector_waits_for_a_run_that_gets_no_processor() -> None:
    detector = HangDetector(Sample(2.0, waits_for_machine=False), processor_s=10.0, blocked_s=5.0)
    starved = Sample(3.0, waits_for_machine=True)
    assert {detector.hung(starved, 1.0) for _ in range(3600)} == {""}
    assert "10 s of processor time" in detector.hung(Sample(12.0, waits_for_machine=True), 1.0)


def test_hang_detector_finds_a_run_that_is_blocked_without_progress() -> None:
    detector = HangDetector(Sample(2.0, waits_for_machine=False), processor_s=10.0, blocked_s=3.0)
    computes = [Sample(2.0 + number * 0.1, waits_for_machine=False) for number in range(1, 9)]
    assert {detector.hung(sample, 1.0) for sample in computes} == {""}
    found = [detector.hung(computes[-1], 1.0) for _ in range(3)]
    assert found[:2] == ["", ""]
    assert "blocked for 3 s" in found[2]


async def test_campaign_without_a_worker_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        async for _ in run_all([], count=0, run_s=1.0):
            await asyncio.sleep(0)


def test_run_settings_are_drawn_by_its_seed(tmp_path: Path) -> None:
    file = tmp_path / "drawn.toml"
    text = 'about = "x"\n[draws.rollout]\nstaleness = [0, 1, 2]\n'
    file.write_text(text)
    loaded = load(str(file))
    bounds = [loaded.config_of(seed).rollout.staleness for seed in range(40)]
    assert set(bounds) == {0, 1, 2}
    assert bounds == [load(str(file)).config_of(seed).rollout.staleness for seed in range(40)]
    file.write_text(text.replace("2]", "99]"))
    with pytest.raises(BadCampaign, match="draws.*staleness"):
        load(str(file))
