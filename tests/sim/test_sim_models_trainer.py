"""The modelled trainer.

Its weights depend on the samples and their order alone, and its state survives its process.
"""

from pathlib import Path

import pytest

from gleaner.actors.protocol.training import StepResult
from gleaner.actors.training.sample import Sample
from gleaner.actors.training.work import Commit, TrainerWork
from gleaner.sim.models.clock import Immediate
from gleaner.sim.models.image_memory import SimImages
from gleaner.sim.models.saved_memory import SimCheckpoints, SimCopies
from gleaner.sim.models.trainer_work import (
    LostState,
    OutOfOrder,
    SimTrainerWork,
    TrainedModel,
    TrainerStores,
    first_weights,
)
from gleaner.sim.models.training_cost import TrainingCost
from gleaner.sim.models.weight_bytes import weights_of

COST = TrainingCost(token_s=0.001, pair_s=0.0, micro_batch_s=0.5, step_s=2.0, copy_s=3.0, publish_s=1.0)


class World:
    """A host with a trainer."""

    def __init__(self) -> None:
        self.memory: dict[Path, bytes] = {}
        self.durable: dict[Path, bytes] = {}
        self.start()

    def start(self) -> None:
        """A life of the trainer's process; each call starts another one."""
        self.clock = Immediate()
        self.images = SimImages(self.memory, Path("/images"))
        self.copies = SimCopies(self.memory, Path("/state"), self.clock)
        self.checkpoints = SimCheckpoints(self.durable, self.memory, Path("/ckpt"), 2, self.clock, 10.0)
        self.work = SimTrainerWork(
            COST,
            TrainedModel(first=first_weights(7), config=b"{}", image_bytes=8192, token_scale=1),
            TrainerStores(self.images, self.copies, (self.memory, self.durable)),
            self.clock,
        )

    def step(self, batches: list[list[Sample]]) -> bytes:
        self.work.begin_step()
        for batch in batches:
            self.work.add_micro_batch(batch)
        self.work.finish_step()
        return self.work.weights


def sample(number: int, *, advantage: float = 0.5) -> Sample:
    return Sample([1, 2, number], [3, 4, number], [-0.1, -0.2, -0.3], advantage)


def commit(step: int) -> Commit:
    result = StepResult(
        step=step,
        root=b"",
        reward=0.0,
        samples=1,
        tokens=1,
        loss=0.0,
        grad_norm=0.0,
        seeding_s=0.0,
        waiting_s=0.0,
        training_s=0.0,
        weights_s=0.0,
    )
    return Commit(result=result, samples=())


def test_weights_follow_from_the_order_of_samples_and_micro_batches() -> None:
    batches = [[sample(1), sample(2)], [sample(3)]]
    assert World().step(batches) == World().step(batches)
    for other in ([[1, 2, 3]], [[1], [2, 3]], [[2, 1], [3]], [[3], [1, 2]]):
        assert World().step([[sample(number) for number in one] for one in other]) != World().step(batches)


@pytest.mark.parametrize(
    "other",
    [
        [sample(1), sample(2)],
        [sample(1), sample(2), sample(3), sample(3)],
        [sample(1), sample(2), sample(4)],
        [sample(1), sample(2), sample(3, advantage=0.25)],
        [sample(1), sample(2), Sample([1, 2, 4], [3, 4, 3], [-0.1, -0.2, -0.3], 0.5)],
        [sample(1), sample(2), Sample([1, 2, 3], [3, 4, 3], [-0.2, -0.3, -0.1], 0.5)],
    ],
    ids=["missing", "doubled", "exchanged", "another advantage", "another prompt", "shifted log-probs"],
)
def test_every_sample_counts_exactly_once(other: list[Sample]) -> None:
    assert World().step([other]) != World().step([[sample(1), sample(2), sample(3)]])


def test_restarted_step_forgets_its_earlier_samples() -> None:
    world = World()
    world.work.begin_step()
    world.work.add_micro_batch([sample(9)])
    assert world.step([[sample(1)]]) == World().step([[sample(1)]])


def test_order_of_calls_is_enforced() -> None:
    world = World()
    with pytest.raises(OutOfOrder):
        world.work.add_micro_batch([sample(1)])
    with pytest.raises(OutOfOrder):
        world.work.finish_step()


def test_step_without_a_sample_keeps_the_weights() -> None:
    world = World()
    world.step([[sample(1)]])
    before = world.work.weights
    world.work.begin_step()
    assert world.work.finish_step().tokens == 0
    assert world.work.weights == before


def test_time_covers_tokens_micro_batches_and_steps() -> None:
    world = World()
    world.step([[sample(1), sample(2)], [sample(3)]])
    assert world.clock.spent_s == pytest.approx(3 * 6 * 0.001 + 2 * 0.5 + 2.0)


def test_trainer_resumes_from_host_copy_and_checkpoint() -> None:
    calm = World()
    calm.step([[sample(1)]])
    expected = calm.step([[sample(2)]])
    world = World()
    work: TrainerWork = world.work
    assert work.load("") is None
    world.step([[sample(1)]])
    world.work.seal(commit(1))
    copy = world.copies.newest()
    assert copy is not None
    world.start()
    assert world.work.load(str(copy.path)) == commit(1)
    assert world.step([[sample(2)]]) == expected
    world.checkpoints.adopt(copy)
    world.memory.clear()  # the host is lost
    world.start()
    assert world.copies.newest() is None
    latest = world.checkpoints.latest().checkpoint
    assert latest is not None
    world.work.load(str(latest.path))
    assert world.step([[sample(2)]]) == expected
    with pytest.raises(LostState):
        world.work.load("/nowhere")


def test_image_holds_the_weights_and_rewriting_is_harmless() -> None:
    world = World()
    world.step([[sample(1)]])
    first = world.work.write_image(1)
    assert world.work.write_image(1) == first
    assert weights_of(world.images.content(1)) == world.work.weights
    assert sum(tensor.nbytes for tensor in first.tensors) == len(world.images.content(1)) == 8192
