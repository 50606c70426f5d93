"""Stages of a step's critical path, from the end of the previous step to its own.

Owns the names of the stages and their order. Pure. The manager measures the path of the last response
(`gleaner.actors.rollout.batches.critical_path`), the trainer its own work after that one; each by its own
clock. The cost of a death is in the stage that waited for it.
"""

from gleaner.actors.protocol.critical_path import CriticalPath
from gleaner.actors.protocol.training import StepResult
from gleaner.actors.training.step_clock import StepSeconds

STAGES = {
    "control": "planning and submission, and the news that the step is done",
    "evaluation": "on held-out problems, before the step",
    "weights": "until the instance that got the last response served the weights: their pull and their load",
    "place": "until that response was sent there",
    "prefill": "until its first token",
    "decode": "until its last token",
    "verdict": "until its group was scored",
    "hand_out": "until the trainer got the group",
    "train": "the micro-batches after that",
    "update": "the optimizer",
    "seal": "the host copy of the state",
    "publish": "the image of the new weights",
    "record": "the step is put on record",
    "messages": "what is left of the time between the last group and the end of the step",
}
"""The stages in their order, with their meanings."""


def stages_of(path: CriticalPath, result: StepResult, spent: StepSeconds) -> dict[str, float]:
    """Seconds of each stage; together the whole step, where the clocks agree. spent: of the whole step."""
    rollout = {
        "weights": path.weights_s,
        "place": path.place_s,
        "prefill": path.prefill_s,
        "decode": path.decode_s,
        "verdict": path.verdict_s,
        "hand_out": path.hand_out_s,
    }
    training = {
        "train": result.last_train_s,
        "update": result.update_s,
        "seal": result.seal_s,
        "publish": result.publish_s,
        "record": result.record_s,
    }
    measured_s = sum(rollout.values()) + path.train_s
    around = {
        "control": max(0.0, spent.step_s - spent.evaluation_s - measured_s),
        "evaluation": spent.evaluation_s,
        "messages": max(0.0, path.train_s - sum(training.values())),
    }
    found = around | rollout | training
    return {name: found[name] for name in STAGES}
