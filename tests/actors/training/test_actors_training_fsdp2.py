"""A trainer of several processes against one of a single process, on the same samples."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from gang_under_test import Harm, Places, Seen, Step, run_gang, run_steps, settings
from safetensors.torch import load_file, save_file

from gleaner.actors.cluster.host_copy import HostCopies
from gleaner.actors.model.checkpoint import load_checkpoint
from gleaner.actors.model.flat_image import image_bytes, weight_layout, write_weights
from gleaner.actors.model.qwen3 import Qwen3, Qwen3Config
from gleaner.actors.training.fsdp2_files import GangFiles
from gleaner.actors.training.sample import Sample
from gleaner.actors.training.settings import ComputeSettings
from gleaner.actors.training.trainer_files import STATE_FILE, TrainerFiles

SIZES = {
    "model_type": "qwen3",
    "vocab_size": 41,  # an odd number of rows: the ranks' runs differ in length
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text(json.dumps(SIZES))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3(Qwen3Config.load(directory))
    save_file(model.state_dict(), directory / "model.safetensors")
    return directory


def some_steps(count: int) -> list[Step]:
    """Steps of three micro-batches; the last of each is a single sample, so one rank has no work."""
    rng = random.Random(7)

    def one() -> Sample:
        length = rng.randint(1, 24)
        response = [rng.randrange(40) for _ in range(length)]
        return Sample([rng.randrange(40) for _ in range(5)], response, [-3.7] * length, rng.gauss(0, 1))

    return [[[one() for _ in range(6)], [one() for _ in range(5)], [one()]] for _ in range(count)]


STEPS = some_steps(2)


@pytest.fixture(scope="module")
def alone(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Places, Seen]:
    """Two steps of a single process."""
    places = Places(model_dir, tmp_path_factory.mktemp("alone"))
    work = TrainerFiles(ComputeSettings.of(settings(0)), model_dir, places.store, places.copies)
    work.load("")
    work.write_image(0)
    seen = Seen()
    run_steps(work, 1, STEPS, seen)
    return places, seen


@pytest.fixture(scope="module")
def pair(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Places, Seen]:
    """The same steps of two processes."""
    places = Places(model_dir, tmp_path_factory.mktemp("pair"))
    seen = run_gang(places, 2, STEPS)
    assert not seen.broken, seen.broken
    return places, seen


def weights(image: bytes) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.frombuffer(image, np.float32)


def sealed(places: Places, step: int) -> Path:
    """The host copy of a step."""
    found = [slot for slot in HostCopies(places.copies).slots if f'"step": {step},' in seal(slot)]
    return found[0]


def seal(slot: Path) -> str:
    return (slot / "meta.json").read_text()


def test_two_processes_do_the_steps_of_one(alone: tuple[Places, Seen], pair: tuple[Places, Seen]) -> None:
    for one, two in zip(alone[1].stats, pair[1].stats, strict=True):
        assert (two.step, two.samples, two.tokens) == (one.step, one.samples, one.tokens)
        for name in ("loss", "grad_norm", "clipped", "drift"):
            assert getattr(two, name) == pytest.approx(getattr(one, name), rel=1e-4), name
    assert pair[0].image(0) == alone[0].image(0), "before the first step all bits are equal"
    for version in (1, 2):
        mine, theirs = weights(pair[0].image(version)), weights(alone[0].image(version))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-5)
        assert not np.array_equal(mine, weights(pair[0].image(version - 1))), "the weights moved"


@pytest.mark.parametrize(("processes", "on_half"), [(4, 1), (2, 2), (4, 3)])
def test_half_of_the_ranks_trains_what_all_train(
    alone: tuple[Places, Seen], tmp_path: Path, processes: int, on_half: int
) -> None:
    """Micro-batches on half of the ranks and on all of them add up to the gradient of one process; with 3 of
    3 the other half has trained nothing at all."""
    places = Places(alone[0].model_dir, tmp_path)
    seen = run_gang(places, processes, STEPS, on_half=on_half)
    assert not seen.broken
    for two, one in zip(seen.stats, alone[1].stats, strict=True):
        assert (two.step, two.samples, two.tokens) == (one.step, one.samples, one.tokens)
        for name in ("loss", "grad_norm", "clipped", "drift"):
            assert getattr(two, name) == pytest.approx(getattr(one, name), rel=1e-4), name
    for version in (1, 2):
        mine, theirs = weights(places.image(version)), weights(alone[0].image(version))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-5)
    state, whole = (load_file(sealed(one, 2) / STATE_FILE) for one in (places, alone[0]))
    assert state.keys() == whole.keys()
    for name, tensor in whole.items():
        torch.testing.assert_close(state[name], tensor, rtol=0, atol=2e-5)


def test_half_of_the_ranks_is_refused_where_no_half_is_whole(model_dir: Path, tmp_path: Path) -> None:
    whole = settings(4)
    work = GangFiles(
        ComputeSettings.of(whole), model_dir, tmp_path / "store", tmp_path / "copies", tmp_path / "gang"
    )
    assert not work.halves
    with pytest.raises(ValueError, match="no half has it whole"):
        work.train_on_half(True)


def test_rank_never_holds_more_than_its_rows(pair: tuple[Places, Seen], alone: tuple[Places, Seen]) -> None:
    whole = 4 * len(weights(pair[0].image(0)))
    assert 0.45 < pair[1].held_bytes / (4 * whole) < 0.55, "half of weights twice, and of the moments"
    assert pair[1].gathers > 0
    assert pair[1].gathers_to_write == 0, "sealing and publishing gather nothing"
    assert 0 < pair[1].gathered_bytes < 0.6 * whole, "a pass gathers one layer at a time"


def test_checkpoint_of_two_processes_is_a_normal_checkpoint(pair: tuple[Places, Seen]) -> None:
    newest = HostCopies(pair[0].copies).newest()
    assert newest is not None
    assert newest.step == 2
    model = load_checkpoint(newest.path)
    published = weights(pair[0].image(2))
    first = next(model.parameters()).detach().numpy().ravel()
    np.testing.assert_array_equal(first, published[: len(first)])
    state = load_file(newest.path / STATE_FILE)
    assert state["adam.step"].item() == 2.0
    assert all(torch.equal(state[f"model.{name}"], weight) for name, weight in model.named_parameters())


def test_two_processes_publish_their_rounded_masters(model_dir: Path, tmp_path: Path) -> None:
    places = Places(model_dir, tmp_path / "pair")
    seen = run_gang(places, 2, STEPS[:1], rollout_dtype="bfloat16")
    assert not seen.broken, seen.broken
    one = TrainerFiles(
        ComputeSettings.of(settings(0, rollout_dtype="bfloat16")),
        model_dir,
        tmp_path / "store",
        tmp_path / "copies",
    )
    one.load("")
    one.write_image(0)
    assert places.image(0) == Places(model_dir, tmp_path).image(0)
    newest = HostCopies(places.copies).newest()
    assert newest is not None
    model = load_checkpoint(newest.path)
    specs = weight_layout(model, torch.bfloat16)
    image = bytearray(image_bytes(specs))
    write_weights(model, memoryview(image), torch.bfloat16)
    assert places.image(1) == bytes(image)


def test_state_moves_between_one_and_two_processes(
    alone: tuple[Places, Seen], pair: tuple[Places, Seen], tmp_path: Path
) -> None:
    after_two = sealed(pair[0], 1)
    work = TrainerFiles(
        ComputeSettings.of(settings(0)), pair[0].model_dir, tmp_path / "store", tmp_path / "copies"
    )
    resumed = work.load(str(after_two))
    assert resumed is not None
    assert resumed.result.step == 1
    work.write_image(1)
    one = Places(pair[0].model_dir, tmp_path)
    assert one.image(1) == pair[0].image(1)
    run_steps(work, 2, STEPS[1:], seen := Seen())
    assert seen.stats[0].grad_norm == pytest.approx(pair[1].stats[1].grad_norm, rel=1e-4)
    np.testing.assert_allclose(weights(one.image(2)), weights(pair[0].image(2)), rtol=0, atol=2e-5)

    two = Places(pair[0].model_dir, tmp_path / "two")
    gang = run_gang(two, 2, STEPS[1:], path=str(sealed(alone[0], 1)))
    assert gang.commit is not None
    assert gang.commit.result.step == 1
    assert two.image(1) == alone[0].image(1)
    assert gang.stats[0].grad_norm == pytest.approx(alone[1].stats[1].grad_norm, rel=1e-4)
    np.testing.assert_allclose(weights(two.image(2)), weights(alone[0].image(2)), rtol=0, atol=2e-5)


@pytest.mark.parametrize("processes", [1, 3])
def test_any_process_count_resumes_the_state_of_two(
    pair: tuple[Places, Seen], processes: int, tmp_path: Path
) -> None:
    places = Places(pair[0].model_dir, tmp_path)
    gang = run_gang(places, processes, STEPS[1:], path=str(sealed(pair[0], 1)))
    assert places.image(1) == pair[0].image(1)
    np.testing.assert_allclose(weights(places.image(2)), weights(pair[0].image(2)), rtol=0, atol=2e-5)
    assert gang.stats[0].step == 2


def test_bad_gradient_or_empty_step_changes_no_rank(pair: tuple[Places, Seen], tmp_path: Path) -> None:
    places = Places(pair[0].model_dir, tmp_path)
    bad = [[Sample([1, 2], [3, 4], [-3.7, -3.7], float("nan")), *STEPS[0][0]]]
    seen = run_gang(places, 2, [bad, [], STEPS[0]])
    assert not seen.broken, seen.broken
    assert seen.not_finite.startswith("gradient norm nan")
    assert [(stats.step, stats.tokens > 0) for stats in seen.stats] == [(0, False), (1, True)]
    assert places.image(1) == pair[0].image(0), "a version of its own, of the same weights"
    assert places.image(2) == pair[0].image(1)


def test_sample_loss_is_shared_out_like_token_loss(model_dir: Path, tmp_path: Path) -> None:
    one, two = Places(model_dir, tmp_path / "one"), Places(model_dir, tmp_path / "two")
    work = TrainerFiles(ComputeSettings.of(settings(0, loss="gspo")), model_dir, one.store, one.copies)
    work.load("")
    run_steps(work, 1, STEPS[:1], seen := Seen())
    gang = run_gang(two, 2, STEPS[:1], loss="gspo")
    assert gang.stats[0].loss == pytest.approx(seen.stats[0].loss, rel=1e-4)
    assert gang.stats[0].grad_norm == pytest.approx(seen.stats[0].grad_norm, rel=1e-4)
    np.testing.assert_allclose(weights(two.image(1)), weights(one.image(1)), rtol=0, atol=2e-5)


def test_restarted_gang_makes_the_same_bits(pair: tuple[Places, Seen], tmp_path: Path) -> None:
    places = Places(pair[0].model_dir, tmp_path)
    run_gang(places, 2, STEPS[1:], path=str(sealed(pair[0], 1)))
    assert places.image(2) == pair[0].image(2)


# Orders of a rank: 1 load, 2 image, 3 begin, 4 to 6 micro-batches, 7 finish, 8 state, 9 image, 10 begin ...


def test_rank_killed_in_a_step_ends_the_gang(model_dir: Path, tmp_path: Path) -> None:
    seen = run_gang(Places(model_dir, tmp_path), 2, STEPS, harm=Harm(1, 5, signal.SIGKILL))
    assert seen.broken.startswith("rank 1 is gone")
    assert HostCopies(tmp_path / "copies").newest() is None


def test_frozen_rank_ends_the_gang_at_the_deadline(model_dir: Path, tmp_path: Path) -> None:
    seen = run_gang(Places(model_dir, tmp_path), 2, STEPS, harm=Harm(1, 5, signal.SIGSTOP))
    assert seen.broken.startswith("rank 1 did not answer")


def test_rank_killed_while_writing_leaves_the_previous_state(model_dir: Path, tmp_path: Path) -> None:
    seen = run_gang(Places(model_dir, tmp_path), 2, STEPS, harm=Harm(1, 15, signal.SIGKILL))
    assert seen.broken.startswith("rank 1 is gone")
    newest = HostCopies(tmp_path / "copies").newest()
    assert newest is not None
    assert newest.step == 1
    load_checkpoint(newest.path)


def test_rows_damaged_after_the_seal_are_found(pair: tuple[Places, Seen], tmp_path: Path) -> None:
    copies = HostCopies(tmp_path / "copies")
    shutil.copytree(pair[0].copies, copies.directory)
    newest = copies.newest()
    assert newest is not None
    assert newest.step == 2
    with (newest.path / STATE_FILE).open("r+b") as file:
        file.seek(-3, 2)
        file.write(b"\xff")
    older = copies.newest()
    assert older is not None
    assert older.step == 1
