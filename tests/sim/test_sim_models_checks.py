"""The models compared with public measurements.

They are close to the measurements used for the fit, and not far from the rest.
"""

from gleaner.sim.models.checks import Check, latencies, other_engines


def named(checks: list[Check], text: str) -> Check:
    (found,) = [check for check in checks if text in check.what]
    return found


def test_fitted_latencies_are_met() -> None:
    checks = list(latencies())
    assert len(checks) == 14
    assert all(abs(check.off) < 0.1 for check in checks), [c for c in checks if abs(c.off) >= 0.1]
    assert sum(abs(check.off) for check in checks) / len(checks) < 0.05


def test_unfitted_engines_are_within_a_third() -> None:
    checks = [check for check in other_engines() if "newer engine" not in check.what]
    assert all(abs(check.off) < 0.34 for check in checks), checks
    assert abs(named(checks, "cache").off) < 0.05


def test_newer_engine_is_faster_than_the_fitted_one() -> None:
    assert 0 < named(list(other_engines()), "newer engine").off < 1
