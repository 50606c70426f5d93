"""Records of the controller in the history, across its own death."""

from pathlib import Path

from gleaner.actors.protocol.cluster import HostsUp, NodeSeen, Plan
from gleaner.actors.protocol.training import StepResult
from gleaner.actors.training.history import HistoryWriter, Node, Step, read_history
from gleaner.actors.training.history_recorder import HistoryRecorder
from gleaner.actors.training.step_clock import StepSeconds


def result(step: int) -> StepResult:
    return StepResult(
        step=step, root=b"", reward=0.5, samples=4, tokens=9, loss=0.1, grad_norm=0.2,
        seeding_s=0.1, waiting_s=0.1, training_s=0.1, weights_s=0.1,
    )  # fmt: skip


def test_killed_controller_does_not_repeat_a_written_step(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for steps in ((1, 2), (2, 3)):  # the second life does not know that step 2 was written
        writer = HistoryWriter(path)
        recorder = HistoryRecorder(writer, 100.0)
        for step in steps:
            recorder.step(
                result(step), Plan(t_seed_s=0.0, n_prem=1), StepSeconds(training_s=1.0), 100.0 + step
            )
        writer.close()
    in_history = [record.step for record in read_history(path) if isinstance(record, Step)]
    assert in_history == [1, 2, 3]


def test_killed_controller_records_what_happened_to_hosts_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    writer = HistoryWriter(path)
    recorder = HistoryRecorder(writer, 100.0)
    for node in ("stays", "ends"):
        recorder.node(NodeSeen(node=node, role="preemptible", event="joined"), 101.0)
    writer.close()
    writer = HistoryWriter(path)
    recorder = HistoryRecorder(writer, 200.0)
    up = HostsUp(boot=1, roles={"stays": "preemptible", "joins": "preemptible"}, devices={"joins": 8})
    recorder.resume(up, 201.0)
    recorder.node(NodeSeen(node="joins", role="preemptible", event="joined", devices=8), 202.0)
    writer.close()
    found = [record for record in read_history(path)[2:] if isinstance(record, Node)]
    assert [(one.node, one.event, one.devices) for one in found] == [
        ("ends", "killed", 1),
        ("joins", "joined", 8),
    ]
    assert recorder.hosts("preemptible") == 2
