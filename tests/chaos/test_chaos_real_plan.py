"""Campaigns on real processes: parsed with every mistake named, seeded."""

import itertools
import subprocess
import sys

import pytest

from gleaner.chaos.real import campaign as campaigns
from gleaner.chaos.real.campaign import BadCampaign, Campaign, load, read
from gleaner.chaos.real.faults import KINDS, AnyRealFault, broken_s, kind_of, places, words
from gleaner.chaos.real.plan import HEAD, RESERVED, Plan

SPOTS = ["spot-1", "spot-2"]
MINIMAL = 'on = "processes"\nname = "small"\n[weights]\nkill_process = 1\nreset = 3\n'


def first(count: int, seed: int, campaign: Campaign) -> list[AnyRealFault]:
    return list(itertools.islice(Plan(campaign, seed, SPOTS).faults(), count))


def everything() -> Campaign:
    weights = "\n".join(f"{kind} = 1" for kind in KINDS)
    return read(f'on = "processes"\nname = "all"\n[weights]\n{weights}\n', "all")


def test_every_packaged_campaign_can_be_used() -> None:
    assert {"real-ci", "real-10min", "real-nightly"} <= set(campaigns.names())
    for name in campaigns.names():
        assert load(name).name == name
    ci = load("real-ci")
    assert ci.faults >= 10
    assert len(ci.must_fire) >= 6


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("on = [", "not valid TOML"),
        (MINIMAL.replace("processes", "moon"), "on"),
        (MINIMAL.replace('on = "processes"', ""), "rlctl sim run"),
        (MINIMAL.replace("reset", "rest"), "there is no fault 'rest'; there are kill_process"),
        (MINIMAL + '[job]\njob = { steps = "many" }\n', "job.steps: expected"),
        (MINIMAL + "[job]\njob = { stepps = 3 }\n", "job.stepps: unknown key"),
        (MINIMAL.replace("[weights]", 'at_least = ["unplug"]\n[weights]'), "unplug has no weight"),
        (MINIMAL.replace("[weights]", 'paths = ["luck"]\n[weights]'), "there is no 'luck'"),
        (MINIMAL.replace("[weights]", "faults = 1\n[weights]"), "1 are fewer than the 2 kinds"),
        (MINIMAL.replace("[weights]", "pause_s = [3.0, 1.0]\n[weights]"), "shortest <= longest"),
        (MINIMAL.replace("kill_process = 1", "").replace("reset = 3", "reset = 0"), "no fault has a weight"),
    ],
)
def test_faulty_campaign_is_refused_with_name_and_reason(text: str, problem: str) -> None:
    with pytest.raises(BadCampaign) as refused:
        read(text, "my.toml")
    assert str(refused.value).startswith("my.toml: ")
    assert problem in str(refused.value)


def test_excluded_kinds_are_never_drawn_nor_required() -> None:
    smaller = everything().leaving_out(["reset", "bad_link"])
    left = set(KINDS) - {"reset", "bad_link"}
    assert set(smaller.must_fire) == left
    assert {kind_of(fault) for fault in first(400, 3, smaller)} == left
    assert smaller.leaving_out(["reset"]) == smaller
    for kinds, problem in ((["rest"], "no fault 'rest'"), (KINDS, "all are left out")):
        with pytest.raises(BadCampaign, match=problem):
            everything().leaving_out(kinds)


def test_missing_campaign_error_lists_existing_ones() -> None:
    with pytest.raises(BadCampaign, match="real-ci"):
        load("nonesuch")


def test_fault_series_is_determined_by_the_seed() -> None:
    campaign = everything()
    assert first(60, 7, campaign) == first(60, 7, campaign)
    assert first(60, 7, campaign) != first(60, 8, campaign)


def test_fault_series_is_independent_of_hash_seed() -> None:
    script = (
        "import itertools; from gleaner.chaos.real.plan import Plan;"
        "from gleaner.chaos.real.campaign import load;"
        "print(list(itertools.islice(Plan(load('real-10min'), 3, ['spot-1', 'spot-2']).faults(), 40)))"
    )
    series = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(series) == 1
    assert "host=" in series.pop()


def test_every_wanted_kind_comes_before_any_repeats() -> None:
    campaign = everything()
    for seed in range(20):
        kinds = [kind_of(fault) for fault in first(len(KINDS), seed, campaign)]
        assert sorted(kinds) == sorted(KINDS)


def test_faults_strike_existing_hosts_for_bearable_times() -> None:
    for fault in first(2000, 1, everything()):
        assert set(places(fault)) <= {HEAD, RESERVED, *SPOTS}
        assert len(set(places(fault))) == len(places(fault))
        assert 0 <= broken_s(fault) <= 15
        assert all(place in words(fault) for place in places(fault))


def test_weights_set_how_often_a_kind_comes() -> None:
    drawn = first(1200, 5, read(MINIMAL, "small"))
    share = sum(kind_of(fault) == "reset" for fault in drawn) / len(drawn)
    assert 0.7 < share < 0.8
