"""Recovery of a real cluster, and the verdict of a campaign."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.training.history import End, Node, Restart
from gleaner.chaos.faults import KillProcess, Reset
from gleaner.chaos.real.campaign import read
from gleaner.chaos.real.nemesis import Account, FaultOutcome
from gleaner.chaos.real.page import page_of
from gleaner.chaos.real.paths import defects, of_history, of_log
from gleaner.chaos.real.plots import rates_of
from gleaner.chaos.real.recovery import FRESH_LOOKS, ClusterObservation, SoundCluster, missing
from gleaner.chaos.real.report_schema import MAX_PACE, CampaignReport, JobReport, percentile, thinned
from gleaner.chaos.real.verdict import judge

SOUND = SoundCluster(["head/agent", "spot-1/agent", "spot-1/engine"], preemptible=1)
BEFORE = ClusterObservation(10.0, {}, (), steps=4, tokens=100, looks=7, job=True, testimonies=5)
WELL = ClusterObservation(
    20.0,
    {"head/agent": 1, "spot-1/agent": 2, "spot-1/engine": 30},
    steps=5,
    tokens=101,
    looks=7 + FRESH_LOOKS,
    serving=1,
    reserved=1,
    preemptible=1,
    job=True,
    testimonies=5 + FRESH_LOOKS,
    answers={"head/agent": 1, "spot-1/agent": 2, "spot-1/engine": 30},
    versions={"spot-1/engine": 4},
    instances=1,
)
CAMPAIGN = read(
    """
on = "processes"
name = "small"
faults = 2
paths = ["migration"]
[weights]
kill_process = 1
reset = 1
""",
    "small",
)
JOB = JobReport(number=1, run_id="chaos-1", exit_code=0, steps=6, tokens=900, migrated=3, violations=())
KILL = KillProcess(at_s=1.0, host="spot-1", process="engine")
RESET = Reset(at_s=9.0, a="head", b="spot-1")


def test_complete_working_cluster_is_recovered() -> None:
    assert missing(SOUND, WELL, BEFORE, gone=[3]) == []


@pytest.mark.parametrize(
    ("seen", "lacking"),
    [
        (replace(WELL, job=False), "no job runs"),
        (replace(WELL, processes={"head/agent": 1, "spot-1/agent": 2}), "spot-1/engine is not there"),
        (
            replace(
                WELL,
                processes={**WELL.processes, "spot-1/engine": 3},
                answers={**WELL.answers, "spot-1/engine": 3},
            ),
            "spot-1/engine is not there",
        ),
        (replace(WELL, stopped=["head/agent"]), "head/agent is stopped"),
        (replace(WELL, tokens=100), "no token since"),
        (replace(WELL, steps=4), "no step since"),
        (replace(WELL, serving=0), "0 of 1 instances serve"),
        (replace(WELL, preemptible=0), "0 of 1 preemptible hosts"),
        (replace(WELL, reserved=0), "0 of 1 reserved hosts"),
        (replace(WELL, looks=8), "the fleet was not polled since"),
        (replace(WELL, testimonies=6), "no actor was asked since"),
        (replace(WELL, answers={**WELL.answers, "head/agent": 7}), "head/agent does not answer"),
        (replace(WELL, versions={"spot-1/engine": -1}), "spot-1/engine serves nothing"),
        (replace(WELL, instances=-1), "the manager has 0 of 1 instances"),
    ],
)
def test_missing_part_of_recovery_is_named(seen: ClusterObservation, lacking: str) -> None:
    assert missing(SOUND, seen, BEFORE, gone=[3]) == [lacking]


def account(*struck: FaultOutcome) -> Account:
    return Account(struck=list(struck), pace=[(0.0, 0), (5.0, 500), (10.0, 900)])


def well(began_s: float, fault: KillProcess | Reset, seconds: float) -> FaultOutcome:
    return FaultOutcome(fault, began_s, mended_s=began_s + 1, back_s=seconds / 2, recovered_s=seconds)


def verdict(account: Account, *jobs: JobReport, migrations: int = 3) -> CampaignReport:
    return judge(CAMPAIGN, 7, account, jobs or [JOB], {"migration": migrations}, 60.0)


def test_campaign_with_all_faults_and_no_violation_is_good() -> None:
    campaign = verdict(account(well(1.0, KILL, 4.0), well(9.0, RESET, 1.0)))
    assert (campaign.ok, campaign.violations, campaign.invalid) == (True, (), ())
    assert campaign.fired == {"kill_process": 1, "reset": 1}
    assert [one.recovered_p95_s for one in campaign.recovery] == [4.0, 1.0]
    page = page_of(campaign)
    assert "Every invariant held" in page
    assert "kill spot-1/engine" in page
    assert page.count("<svg") == 2


def test_missed_fault_is_not_counted_and_invalidates_campaign() -> None:
    campaign = verdict(account(well(1.0, KILL, 4.0), FaultOutcome(RESET, 9.0, missed="no connection")))
    assert not campaign.ok
    assert campaign.missed == {"reset": 1}
    assert campaign.invalid == ("no reset fired", "1 of 2 faults fired")
    assert "does not count" in page_of(campaign)


def test_untaken_path_makes_campaign_invalid() -> None:
    campaign = verdict(account(well(1.0, KILL, 4.0), well(9.0, RESET, 1.0)), migrations=0)
    assert campaign.invalid == ("the path 'migration' was never taken",)


def test_job_violation_counts_for_campaign_and_is_escaped() -> None:
    bad = JobReport(
        number=1, run_id="chaos-1", exit_code=1, steps=1, tokens=1, migrated=0, violations=("I1: <b>",)
    )
    campaign = verdict(account(well(1.0, KILL, 4.0), well(9.0, RESET, 1.0)), bad)
    assert (campaign.ok, campaign.violations) == (False, ("chaos-1: I1: <b>",))
    assert "I1: &lt;b&gt;" in page_of(campaign)


def test_paths_are_read_from_history_and_logs() -> None:
    nodes = [("joined", "spot-1"), ("killed", "spot-1"), ("joined", "spot-1"), ("drained", "spot-1")]
    records = [
        *(Node(t_s=1.0, node=node, role="preemptible", event=event) for event, node in nodes),  # type: ignore[arg-type]
        Restart(t_s=2.0, actor="spot-1/engine", cause="crashed: Fenced: superseded", incarnation=2),
        End(
            t_s=3.0, tokens_collected=1, tokens_lost=0, tokens_generated_twice=0, requests_migrated=5, ok=True
        ),
    ]
    assert of_history(records) == {
        "host returned": 1, "host lost": 1, "drain": 1, "one_for_one": 1, "name fence": 1, "migration": 5,
    }  # fmt: skip
    lines = [
        "2026-01-01 10:00:00,1 WARNING supervisor: tcp://10.77.0.4:7700 is dead: silent for 4.1 s",
        "2026-01-01 10:00:00,1 INFO actor: ready with 7 steps done",
        "2026-01-01 10:00:00,1 INFO actor: ready with 0 steps done",
    ]
    assert of_log(lines) == {"declared dead": 1, "trainer resume": 1}
    assert defects([*lines, "2026-01-01 CRITICAL nodeagent: a defect ended nodeagent x"]) != []
    assert defects(lines) == []


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(1, 100))
def test_percentile_is_a_measured_value_covering_its_share(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found is not None
    assert found in values
    assert sum(value <= found for value in values) >= share / 100 * len(values) - 1e-9
    assert percentile([], share) is None


def test_long_campaign_is_thinned_and_keeps_its_end() -> None:
    pace = [(float(n), n * 10) for n in range(50_000)]
    assert len(thinned(pace)) <= MAX_PACE + 1
    assert thinned(pace)[-1] == (49_999.0, 499_990)
    assert all(rate == pytest.approx(10.0) for rate in rates_of(tuple(thinned(pace)))[1][:-1])


def test_time_without_tokens_is_drawn_as_a_gap() -> None:
    pace = [(float(at_s), 10 * at_s) for at_s in range(40)] + [
        (100.0 + at_s, 400 + 10 * at_s) for at_s in range(40)
    ]
    between = [rate for at_s, rate in zip(*rates_of(tuple(pace)), strict=True) if 40 < at_s < 100]
    assert between == [0.0]
