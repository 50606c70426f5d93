"""Guarantees that there cannot be workers for are refused."""

import pytest

from gleaner.actors.reward import guarantees
from gleaner.actors.reward.stages import Pipelines
from gleaner.configs.load import ConfigError, from_tree


def problem(reward: dict[str, object], hosts: int | None, cores: int = 2) -> str:
    config = from_tree({"reward": reward}, "test")
    return guarantees.problem(Pipelines(config.task, config.reward), config.reward, hosts, cores)


TEN: dict[str, object] = {"guaranteed": {"code": 6, "math": 4}}


@pytest.mark.parametrize(("workers", "hosts", "refused"), [(10, 0, False), (9, 0, True), (4, 3, False)])
def test_guarantees_are_refused_where_there_are_fewer_workers(
    workers: int, hosts: int, refused: bool
) -> None:
    found = problem({"workers": workers, "jobs": TEN}, hosts)
    assert bool(found) is refused
    if refused:
        assert found == (
            "reward.jobs.guaranteed: 10 workers are guaranteed to all jobs, and there are 9 workers of "
            "score: 9 own, 0 hosts with 2: lower the guarantees, or start more workers or hosts"
        )


def test_guarantees_are_refused_where_no_host_that_joins_can_help() -> None:
    assert not problem({"workers": 1, "jobs": TEN}, None)
    stages = {"separate": True, "score": {"workers": 9, "host_workers": 0}}
    assert "there are 9 workers of score" in problem({"stages": stages, "jobs": TEN}, None)
    planner = {"kind": "distrs", "max_workers": 8}
    assert "reward.planner.max_workers is 8" in problem({"planner": planner, "jobs": TEN}, None)
    assert not problem({"workers": 1}, 0)


def test_guarantee_beyond_the_quota_of_a_job_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"guaranteed.code: expected at most max_workers \(4\)"):
        problem({"workers": 16, "jobs": {**TEN, "max_workers": 4}}, 0)
