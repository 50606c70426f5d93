"""Records of the controller in the history, across its own death."""

from pathlib import Path

from gleaner.actors.protocol.cluster import Plan
from gleaner.actors.protocol.training import StepResult
from gleaner.actors.training.history import HistoryWriter, Step, read_history
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
        recorder = HistoryRecorder(writer, 100.0, {})
        for step in steps:
            recorder.step(
                result(step), Plan(t_seed_s=0.0, n_prem=1), StepSeconds(training_s=1.0), 100.0 + step
            )
        writer.close()
    in_history = [record.step for record in read_history(path) if isinstance(record, Step)]
    assert in_history == [1, 2, 3]
