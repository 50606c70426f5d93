"""A user's own actor beside a simulated job: restarts and journal."""

import re
from pathlib import Path

import pytest

from gleaner.configs.load import ConfigError, load
from gleaner.configs.schema import Config
from gleaner.nodeagent.own_actors import own_actor, own_name
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.run_setup import RunSetup

KILL_S = 7.0  # instances serve by then, and the job continues for 3 s
PAGE = Path(__file__).parents[2] / "docs" / "actors.md"
SMALL = [
    "job.steps=12",
    "task.heldout_problems=8",
    "rollout.prompts=8",
    "rollout.samples=4",
    "engine.slots=4",
    "fleet.trace=",
]


def with_actors(*places: str) -> Config:
    shown = ", ".join(f'"{place}"' for place in places)
    return load("quickstart", [*SMALL, f"job.actors=[{shown}]"])


@pytest.fixture
def fleet_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The example of docs/actors.md, made importable."""
    found = re.search(r"<!-- example: fleet_watch.py -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "fleet_watch.py").write_text(found[1])
    monkeypatch.syspath_prepend(tmp_path)
    return "fleet_watch:FleetWatch"


def test_own_actor_sees_job_and_keeps_its_journal(fleet_watch: str) -> None:
    cluster = SimCluster(RunSetup(with_actors(fleet_watch), seed=1))
    breaking = FaultInjector(cluster)
    hit: list[bool] = []
    cluster.loop.call_later(KILL_S, lambda: hit.append(breaking.kill_process("head", "own")))
    outcome = cluster.run()
    assert (outcome.ended, hit) == ("done", [True])
    assert outcome.findings == []
    [stream] = [one for one in outcome.streams if one.name == "own/FleetWatch"]
    fewest = [event.instances for event in stream.content.events]
    assert fewest, "the actor saw serving instances"
    assert fewest == sorted(set(fewest), reverse=True), (
        "only a smaller number is written, also after the kill"
    )


def test_job_without_own_actors_has_no_process_for_them() -> None:
    cluster = SimCluster(RunSetup(with_actors(), seed=1))
    breaking = FaultInjector(cluster)
    seen: list[bool] = []
    cluster.loop.call_later(KILL_S, lambda: seen.append(breaking.process("head", "own") is not None))
    assert cluster.run().ended == "done"
    assert seen == [False]


def test_missing_own_actor_fails_the_job_with_its_name() -> None:
    outcome = SimCluster(RunSetup(with_actors("no_such_module:Watch"), seed=1)).run()
    assert outcome.ended == "failed"
    assert "job.actors no_such_module:Watch: No module named" in outcome.reason
    assert outcome.virtual_s < 60, "the start is not repeated"


@pytest.mark.parametrize("place", ["fleet_watch", "a:b:c", ":Watch", "a b:C", "os:path;x", "../x:Y"])
def test_invalid_place_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match=r"job\.actors: expected module:Class"):
        with_actors(place)


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="Watch is there twice"):
        with_actors("a:Watch", "b:Watch")


def test_only_an_actor_class_is_accepted(fleet_watch: str) -> None:
    assert own_actor(fleet_watch).__name__ == "FleetWatch"
    assert own_name(fleet_watch) == "own/FleetWatch"
    with pytest.raises(ConfigError, match="expected a class below supervisor.Actor"):
        own_actor("pathlib:Path")
    with pytest.raises(ConfigError, match="no attribute 'Nobody'"):
        own_actor("pathlib:Nobody")
