"""Speed of the simulator with rounds: figures of a job that was done."""

import pytest

from bench import sim_rounds


def test_job_with_rounds_has_its_time_and_its_tokens() -> None:
    job = sim_rounds.measure("tail", 0, 1)
    assert (job.mode, job.seed) == ("tail", 0)
    assert job.virtual_s > 60
    assert job.tokens > 10_000
    assert job.second_ms == pytest.approx(1e3 * job.cpu_s / job.virtual_s)
    assert 0 < job.race_s < job.cpu_s
    assert job.token_us == pytest.approx(1e6 * job.cpu_s / job.tokens)


def test_job_that_is_not_done_gives_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failed:
        ended, reason = "failed", "no hosts"

    monkeypatch.setattr(sim_rounds.SimCluster, "run", lambda _cluster: Failed())
    with pytest.raises(RuntimeError, match="failed: no hosts"):
        sim_rounds.measure("off", 0, 1)
