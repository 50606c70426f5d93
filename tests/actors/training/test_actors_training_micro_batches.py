"""Micro-batches in order: a step's gradient has the same bits for every order of completed groups."""

from __future__ import annotations

import json
import random
from array import array
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from gleaner.actors.model.qwen3 import Qwen3, Qwen3Config
from gleaner.actors.protocol.rollout import GroupOut, SampleOut
from gleaner.actors.training.micro_batches import AsTheyCome, InOrder, MicroBatches
from gleaner.actors.training.policy_update import TrainerCompute
from gleaner.actors.training.samples import Sample
from gleaner.configs.schema import Training

SIZES = {
    "model_type": "qwen3",
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
}


def group(number: int) -> GroupOut:
    """Two samples that differ in their names and lengths."""
    samples = tuple(
        SampleOut(
            request=f"step-1/{number}/{sample}",
            tokens=array("I", range(1 + (number * 3 + sample) % 7)).tobytes(),
            logprobs=b"",
            score=0.0,
            spans=(),
        )
        for sample in range(2)
    )
    return GroupOut(group=number, prompt=b"", samples=samples)


def arrivals(order: list[int], cuts: set[int]) -> list[list[GroupOut]]:
    """Groups in this order, cut into answers."""
    parts: list[list[GroupOut]] = [[]]
    for at, number in enumerate(order):
        if at in cuts:
            parts.append([])
        parts[-1].append(group(number))
    return parts


def fed(policy: MicroBatches, parts: list[list[GroupOut]]) -> list[list[int]]:
    """The micro-batches made of these arrivals, as group numbers."""
    return [[one.group for one in due] for part in parts for due in policy.add(part, ())]


orders = st.integers(1, 20).flatmap(lambda total: st.permutations(range(total)))


@given(orders, st.sets(st.integers(0, 20)), st.integers(1, 6))
def test_in_order_batches_are_the_same_for_every_arrival(order: list[int], cuts: set[int], size: int) -> None:
    total = len(order)
    made = fed(InOrder(size, total), arrivals(order, cuts))
    assert made == [list(range(first, min(first + size, total))) for first in range(0, total, size)]


@given(orders, st.sets(st.integers(0, 20)), st.integers(1, 6))
def test_in_order_requests_no_group_twice_and_delays_none(
    order: list[int], cuts: set[int], size: int
) -> None:
    policy, came, trained = InOrder(size, len(order)), set[int](), list[int]()
    for part in arrivals(order, cuts):
        came |= {one.group for one in part}
        trained += [one.group for due in policy.add(part, ()) for one in due]
        assert sorted(policy.have) == sorted(came)
        following = range(len(trained), min(len(trained) + size, len(order)))
        assert not following or not came.issuperset(following)
        assert policy.least == len(set(following) - came)


def test_as_they_come_batch_has_all_arrived_groups() -> None:
    order = [4, 1, 0, 3, 2, 6, 5, 8, 7]
    assert fed(AsTheyCome(2, 9), arrivals(order, {1, 5, 6})) == [[4, 1, 0, 3, 2], [6, 5, 8, 7]]


def test_as_they_come_only_the_last_batch_is_smaller() -> None:
    order = [4, 1, 0, 3, 2]
    assert fed(AsTheyCome(2, 5), arrivals(order, {1, 2, 3, 4})) == [[4, 1], [0, 3], [2]]
    assert fed(AsTheyCome(4, 5), arrivals(order, {2, 3})) == [[4, 1, 0, 3, 2]]


@given(st.permutations(range(9)), st.sets(st.integers(0, 8)), st.integers(1, 9))
def test_as_they_come_trains_every_group_once_without_delay(
    order: list[int], cuts: set[int], size: int
) -> None:
    policy, trained, came = AsTheyCome(size, len(order)), list[int](), 0
    for part in arrivals(order, cuts):
        came += len(part)
        due = policy.add(part, ())
        trained += [one.group for groups in due for one in groups]
        assert all(len(groups) >= size for groups in due) or came == len(order)
        held = came - len(trained)
        assert held < size
        assert policy.least == size - held
        assert sorted(policy.have) == sorted(order[:came])
    assert trained == list(order)


@given(st.data(), st.integers(1, 12), st.integers(0, 6), st.integers(1, 4))
def test_dropped_groups_leave_no_gap(data: st.DataObject, total: int, uniform: int, size: int) -> None:
    numbers = data.draw(st.permutations(range(total + uniform)))
    dropped, counting = sorted(numbers[:uniform]), sorted(numbers[uniform:])
    order = data.draw(st.permutations(range(total + uniform)))
    policy, made, known = InOrder(size, total), list[list[int]](), list[int]()
    for number in order:
        known += [number] if number in dropped else []
        came = [group(number)] if number in counting else []
        made += [[one.group for one in due] for due in policy.add(came, known)]
    assert made == [counting[first : first + size] for first in range(0, total, size)]
    assert policy.have == counting


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text(json.dumps(SIZES))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3(Qwen3Config.load(directory))
    save_file(model.state_dict(), directory / "model.safetensors")
    return directory


def samples_of(number: int) -> list[Sample]:
    rng = random.Random(number)
    samples = []
    for _ in range(3):
        response = [rng.randrange(40) for _ in range(rng.randint(1, 20))]
        logprobs = [-rng.random() for _ in response]
        samples.append(Sample([rng.randrange(40) for _ in range(4)], response, logprobs, rng.gauss(0, 1)))
    return samples


def weights_after(model_dir: Path, micro_batches: list[list[int]]) -> list[bytes]:
    """Every weight after a step of these micro-batches."""
    compute = TrainerCompute(model_dir, Training())
    compute.begin_step()
    for numbers in micro_batches:
        compute.add_micro_batch([sample for number in numbers for sample in samples_of(number)])
    compute.finish_step()
    return [tensor.numpy().tobytes() for tensor in compute.state().values()]


def test_step_weights_are_the_same_for_every_group_order(model_dir: Path) -> None:
    rng = random.Random(5)
    in_order, as_they_came = set[bytes](), set[bytes]()
    for _ in range(6):
        order = rng.sample(range(10), 10)
        parts = arrivals(order, {rng.randrange(10) for _ in range(4)})
        in_order.add(b"".join(weights_after(model_dir, fed(InOrder(4, 10), parts))))
        as_they_came.add(b"".join(weights_after(model_dir, fed(AsTheyCome(4, 10), parts))))
    assert len(in_order) == 1
    assert len(as_they_came) > 1, "the order made no difference, so this test proves nothing"
