"""`VerifierHealth`: a verifier is sick or well by its verdicts and the time."""

from gleaner.actors.reward.health import LEAST, WINDOW, VerifierHealth
from gleaner.actors.reward.verdicts import LOST, OURS, PROGRAMS, VERIFIER_FAILED

TEXT = "ZeroDivisionError: division by zero"


def record(health: VerifierHealth, statuses: list[str], at_s: float = 0.0) -> None:
    for status in statuses:
        health.observe(status, TEXT if status in OURS else "", at_s)


def test_verifier_is_sick_beyond_its_share_of_failures() -> None:
    health = VerifierHealth(0.2, 30.0)
    record(health, ["ok"] * 160 + [VERIFIER_FAILED] * 40)
    assert not health.sick, "a fifth is not more than a fifth"
    record(health, [LOST])
    assert health.sick
    sick = health.sickness(0.0)
    assert sick is not None
    assert (sick.of, sick.counts, sick.text) == (WINDOW, {"lost": 1, "verifier_failed": 40}, TEXT)
    assert sick.words == f"41 of its last 200 verdicts failed (lost 1, verifier_failed 40): {TEXT}"


def test_verdicts_older_than_the_window_do_not_count() -> None:
    health = VerifierHealth(0.2, 30.0)
    record(health, [VERIFIER_FAILED, "ok"] * 9)  # fewer than the share is judged by
    record(health, ["ok"] * WINDOW + [LOST] * 40)
    assert not health.sick


def test_verifier_is_sick_at_once_without_any_score() -> None:
    health = VerifierHealth(0.2, 30.0)
    record(health, [LOST])
    assert health.sick
    assert not health.outage, "another response may do better"
    record(health, ["no_answer"])
    assert not health.sick
    record(health, [LOST] * (LEAST - 3))
    assert not health.sick
    record(health, [LOST])
    assert health.sick
    assert health.outage


def test_program_statuses_never_make_a_verifier_sick() -> None:
    health = VerifierHealth(0.0, 30.0)
    record(health, sorted(PROGRAMS) * 20)
    assert not health.sick
    assert health.sickness(1.0) is None


def test_verifier_is_sick_if_every_response_times_out() -> None:
    health = VerifierHealth(0.2, 30.0)
    health.observe("timeout", "more than 2 s", 0.0)
    sick = health.sickness(0.0)
    assert sick is not None
    assert sick.words == "1 of its last 1 verdicts failed (timeout 1): more than 2 s"
    assert health.fails("timeout")
    record(health, ["timeout", VERIFIER_FAILED] * LEAST)
    assert health.sick
    record(health, ["ok"])
    assert not health.fails("timeout"), "now the response is at fault"
    record(health, ["timeout", "ok"] * LEAST)
    assert not health.sick


def test_verifier_is_well_before_the_window_is_full() -> None:
    health = VerifierHealth(0.2, 30.0)
    record(health, [VERIFIER_FAILED] * WINDOW)
    record(health, ["ok"] * (LEAST - 5))
    assert health.sick
    record(health, ["ok"])
    assert not health.sick
    record(health, [VERIFIER_FAILED])
    assert health.sick, "five failures of twenty are more than a fifth"


def test_sickness_time_starts_anew_after_recovery() -> None:
    health = VerifierHealth(0.2, 30.0)
    record(health, [VERIFIER_FAILED] * 5, at_s=100.0)
    record(health, [VERIFIER_FAILED] * 5, at_s=120.0)
    sick = health.sickness(129.9)
    assert sick is not None
    assert not sick.over
    sick = health.sickness(130.0)
    assert sick is not None
    assert sick.over
    record(health, ["ok"] * LEAST, at_s=131.0)
    record(health, [VERIFIER_FAILED] * LEAST, at_s=140.0)
    sick = health.sickness(141.0)
    assert sick is not None
    assert sick.for_s == 1.0


def test_idle_verifier_is_not_sick() -> None:
    health = VerifierHealth(0.2, 30.0)
    record(health, [VERIFIER_FAILED] * 3)
    health.idle()
    assert not health.sick
    record(health, [VERIFIER_FAILED], at_s=5.0)
    assert health.sick, "its last verdicts are remembered"
    record(health, ["ok"] * 2)
    health.idle()
    record(health, [LOST, "ok"] * 2)
    assert not health.sick


def test_share_of_one_never_makes_a_verifier_sick() -> None:
    health = VerifierHealth(1.0, 0.0)
    record(health, [VERIFIER_FAILED] * 2 * WINDOW)
    assert not health.sick
