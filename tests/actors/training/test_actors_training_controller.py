"""The controller alone: what a restarted one records."""

from pathlib import Path

import msgspec

from gleaner.actors.protocol.cluster import HostsUp, JobSpec, NodeSeen, WhoIsUp
from gleaner.actors.protocol.rollout import RolloutFigures, RolloutStatus
from gleaner.actors.training.controller import RLController
from gleaner.actors.training.history import HistoryWriter, Node, Run, Sample, read_history
from gleaner.configs.schema import Config, Limits
from gleaner.supervisor.actor_test_kit import ActorTestKit

JOB = JobSpec(run_id="job", run_dir="/r", model_dir="/m", config="")
CONFIG = msgspec.convert({"training": {"backend": "own"}}, Config)
"""A trainer outside of the cluster: the controller asks none for a step."""

FIGURES = (
    "queued", "pending", "executing", "serving_reserved", "serving_preemptible", "tokens_collected",
    "tokens_lost", "tokens_generated_twice", "requests_migrated", "requests_moved",
)  # fmt: skip


def up(*nodes: str) -> HostsUp:
    return HostsUp(boot=4, roles=dict.fromkeys(nodes, "preemptible"))


def nodes(path: Path) -> list[tuple[str, str]]:
    return [(record.node, record.event) for record in read_history(path) if isinstance(record, Node)]


def test_restarted_controller_records_hosts_that_it_did_not_see(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    kit = ActorTestKit(lambda: RLController(JOB, CONFIG, HistoryWriter(path)))
    kit.answer(WhoIsUp, up("spot-1"))
    with kit:
        kit.tell(NodeSeen(node="spot-2", role="preemptible", event="joined"))
        assert nodes(path) == [("spot-1", "joined"), ("spot-2", "joined")]
        kit.answer(WhoIsUp, up("spot-2", "spot-3"))
        kit.crash()
        kit.advance(0.1)
        assert nodes(path)[2:] == [("spot-1", "killed"), ("spot-3", "joined")]


class Stepping(RLController):
    """A controller that records a step as soon as it has begun."""

    async def _only_serve(self) -> None:
        if not self._standing.finished:
            await self._submission.finished(1)
        await super()._only_serve()


def test_restarted_controller_goes_on_with_its_history_behind_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    config = msgspec.structs.replace(CONFIG, limits=Limits(job_events=1))
    kit = ActorTestKit(lambda: Stepping(JOB, config, HistoryWriter(path)))
    kit.answer(WhoIsUp, up("spot-1"))
    with kit:
        kit.advance(0.1)
        for _ in range(2):
            kit.crash()
            kit.advance(0.1)
        assert kit.actor.summary()["step"] == 1
    assert sum(isinstance(record, Run) for record in read_history(path)) == 1


def test_fleet_sample_is_of_the_step_under_way(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    kit = ActorTestKit(lambda: RLController(JOB, CONFIG, HistoryWriter(path)))
    kit.answer(WhoIsUp, up("spot-1"))
    kit.answer(RolloutStatus, RolloutFigures(**dict.fromkeys(FIGURES, 2), refused={}))
    with kit:
        kit.advance(10.0)
        samples = [one for one in read_history(path) if isinstance(one, Sample)]
    assert {one.step for one in samples} == {1}
    assert (samples[0].serving, samples[0].pending) == (4, 4)
