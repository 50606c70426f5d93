"""Devices and models: complete figures, published shapes, derived capacities."""

from importlib.resources import files
from itertools import pairwise

import pytest

from gleaner.configs.schema import Config
from gleaner.sim.models.engine_cost import DoesNotFit, engine_cost, kv_capacity_tokens
from gleaner.sim.models.hardware import UnknownHardware, assumptions, device, device_names
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.job_model import JobModel
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.movement import declared_scale, load_s, pull_s
from gleaner.sim.models.shapes import ModelShape, UnknownModel, model_names, model_shape
from gleaner.sim.models.training_cost import Passes, training_cost


def test_every_device_names_its_source_and_valid_shares() -> None:
    assert {"h100", "h200", "a100", "l40s", "t4", "cpu"} <= set(device_names())
    for name in device_names():
        assert len(device(name).source) > 40
        assumed = assumptions(name)
        for share in ("decode_bandwidth", "decode_flops", "prefill_flops", "training_mfu", "memory_fraction"):
            assert 0 < getattr(assumed, share) <= 1


def test_assumption_of_a_device_overrides_the_default() -> None:
    assert assumptions("t4").training_mfu != assumptions("h100").training_mfu
    assert assumptions("t4").link_efficiency == assumptions("h100").link_efficiency


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownHardware, match="h100"):
        device("h1000")
    with pytest.raises(UnknownModel, match="qwen3-8b"):
        model_shape("qwen4")
    with pytest.raises(ValueError, match="groups of 3"):
        HostDevices("h100", 8, 3)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen3-0_6b", 0.596),
        ("qwen3-1_7b", 1.72),
        ("qwen3-4b", 4.02),
        ("qwen3-8b", 8.19),
        ("qwen3-14b", 14.77),
        ("qwen3-32b", 32.76),
        ("qwen2_5-7b", 7.616),
        ("qwen2_5-14b", 14.77),
        ("qwen2_5-32b", 32.76),
    ],
)
def test_shapes_add_up_to_the_published_parameters(name: str, billions: float) -> None:
    assert model_shape(name).parameters / 1e9 == pytest.approx(billions, rel=2e-3)


def test_shape_is_built_from_the_settings_of_job() -> None:
    shape = ModelShape.of(Config().model, vocabulary=128)
    assert shape == model_shape("quickstart")
    assert shape.weight_bytes == 4 * shape.parameters


def test_cache_bytes_are_split_until_heads_are_copied() -> None:
    shape = model_shape("qwen3-8b")
    assert shape.kv_bytes_per_token == 147_456
    assert shape.kv_bytes_per_token_and_device(8) * 8 == shape.kv_bytes_per_token
    assert shape.kv_bytes_per_token_and_device(16) == shape.kv_bytes_per_token_and_device(8)


def test_token_capacity_grows_faster_than_device_count() -> None:
    shape = model_shape("qwen3-14b")
    held = [kv_capacity_tokens(shape, HostDevices("h100", tp, tp)) for tp in (1, 2, 4, 8)]
    for fewer, more in pairwise(held):
        assert more > 2 * fewer  # the weights are split too


def test_weights_that_fill_the_memory_are_refused() -> None:
    with pytest.raises(DoesNotFit, match="lacks"):
        kv_capacity_tokens(model_shape("qwen3-14b"), HostDevices("t4"))
    assert kv_capacity_tokens(model_shape("qwen3-14b"), HostDevices("t4", 8, 8)) > 0


def test_every_model_has_a_cost_on_every_device() -> None:
    for name in device_names():
        for model in model_names():
            cost = engine_cost(model_shape(model), HostDevices(name))
            assert cost.decode(1, 100) > 0
            assert cost.decode(64, 64_000) > cost.decode(1, 100)


def test_faster_memory_and_more_devices_shorten_a_step() -> None:
    shape = model_shape("qwen3-14b")
    steps = [
        engine_cost(shape, host_devices).decode(64, 64 * 4000)
        for host_devices in (
            HostDevices("h200", 2, 2),
            HostDevices("h200"),
            HostDevices("h100"),
            HostDevices("a100"),
            HostDevices("l40s"),
        )
    ]
    assert steps == sorted(steps)


def test_tensor_parallelism_pays_less_the_wider_it_is() -> None:
    shape = model_shape("qwen3-8b")
    steps = [engine_cost(shape, HostDevices("h100", tp, tp)).decode(32, 32 * 2000) for tp in (1, 2, 4, 8)]
    gains = [before / after for before, after in pairwise(steps)]
    assert all(1 < gain < 2 for gain in gains)
    assert gains == sorted(gains, reverse=True)


def test_training_time_grows_with_work_and_shrinks_with_devices() -> None:
    shape, lengths = model_shape("qwen3-8b"), [4000.0] * 64
    plain = training_cost(shape, HostDevices("h100", 8)).micro_batch(lengths)
    all_of_it = Passes(recompute=True, old_logprobs=True, reference=True)
    much = training_cost(shape, HostDevices("h100", 8), all_of_it).micro_batch(lengths)
    few = training_cost(shape, HostDevices("h100", 4)).micro_batch(lengths)
    overhead = assumptions("h100").micro_batch_overhead_s
    assert (much - overhead) / (plain - overhead) == pytest.approx(2.0)
    assert (few - overhead) / (plain - overhead) == pytest.approx(2.0)


def test_pull_time_is_weight_bytes_over_link_rate() -> None:
    shape, host_devices = model_shape("qwen3-8b"), HostDevices("h100")
    assert pull_s(shape, host_devices, 50e9 / 8) == pytest.approx(16.38e9 / (6.25e9 * 0.85), rel=1e-2)
    assert declared_scale(shape, 2**18) * 2**18 == pytest.approx(shape.weight_bytes)
    assert load_s(shape, HostDevices("h100", 2, 2)) < load_s(shape, host_devices)


@pytest.mark.parametrize("model", model_names())
def test_image_has_enough_chunks_for_their_deadline(model: str) -> None:
    job_model = JobModel.named(model, LengthLaw())
    chunk_bytes = job_model.settings(Config()).weights.chunk_bytes
    assert job_model.image_bytes % chunk_bytes == 0
    assert 4 <= job_model.image_bytes // chunk_bytes <= 128
    assert chunk_bytes * job_model.wire_scale <= 2**29


SIZES = ("qwen3-8b", "qwen3-14b", "qwen3-32b")


@pytest.mark.parametrize("model", SIZES)
@pytest.mark.parametrize("name", ["h100", "h200"])
def test_large_models_run_on_large_devices_at_every_width(name: str, model: str) -> None:
    shape = model_shape(model)
    rigs = [HostDevices(name, tp, tp) for tp in (1, 2, 4, 8)]
    costs = [engine_cost(shape, host_devices) for host_devices in rigs]
    for narrow, wide in pairwise(costs):
        assert wide.decode(64, 64 * 4000) < narrow.decode(64, 64 * 4000)
        assert wide.prefill(4000, 4000 * 2000) < narrow.prefill(4000, 4000 * 2000)
    held = [kv_capacity_tokens(shape, host_devices) for host_devices in rigs]
    assert held == sorted(held)
    assert held[0] > 10_000
    trained = [training_cost(shape, host_devices).micro_batch([4000.0] * 16) for host_devices in rigs]
    assert trained == sorted(trained, reverse=True)


@pytest.mark.parametrize(
    ("name", "model", "tp"),
    [
        ("a100", "qwen3-8b", 1),
        ("a100", "qwen3-14b", 1),
        ("a100", "qwen3-32b", 1),
        ("l40s", "qwen3-8b", 1),
        ("l40s", "qwen3-14b", 1),
        ("l40s", "qwen3-32b", 2),
        ("t4", "qwen3-4b", 1),
        ("t4", "qwen3-8b", 2),
        ("t4", "qwen3-14b", 4),
        ("t4", "qwen3-32b", 8),
        ("cpu", "qwen3-8b", 1),
        ("cpu_core", "qwen3-0_6b", 1),
    ],
)
def test_small_devices_need_a_minimum_width_for_models(name: str, model: str, tp: int) -> None:
    shape = model_shape(model)
    assert kv_capacity_tokens(shape, HostDevices(name, tp, tp)) > 1000
    cost = engine_cost(shape, HostDevices(name, tp, tp))
    assert cost.decode(1, 1000) > engine_cost(shape, HostDevices("h100", tp, tp)).decode(1, 1000)
    if tp > 1:
        with pytest.raises(DoesNotFit):
            kv_capacity_tokens(shape, HostDevices(name, tp // 2, tp // 2))


def test_small_batch_is_memory_bound_and_large_compute_bound() -> None:
    """The roofline, computed by hand: Qwen3-8B read at 87 % of 3.35 TB/s, 2 FLOPs a parameter at 60 % of 989
    T."""
    shape, host_devices = model_shape("qwen3-8b"), HostDevices("h100")
    cost, overhead_s = engine_cost(shape, host_devices), assumptions("h100").step_overhead_s
    request_s = assumptions("h100").request_overhead_s
    read_s = 2 * shape.active_parameters / (3.35e12 * 0.87)
    assert cost.decode(1, 0) == pytest.approx(read_s + overhead_s + request_s)
    assert cost.decode(8, 0) == pytest.approx(read_s + overhead_s + 8 * request_s)
    computed_s = 1000 * 2 * shape.active_parameters / (989.4e12 * 0.6)
    assert computed_s > read_s
    assert cost.decode(1000, 0) == pytest.approx(computed_s + overhead_s + 1000 * request_s)
    cache_s = 64_000 * shape.kv_bytes_per_token / (3.35e12 * 0.87)
    assert cost.decode(8, 64_000) - cost.decode(8, 0) == pytest.approx(cache_s)


def test_every_hardware_constant_has_a_reason_in_comment() -> None:
    """A line of comment is above the constant, or above its table."""
    lines = files("gleaner.sim.models").joinpath("hardware.toml").read_text().splitlines()
    begin = lines.index("[assumptions.default]")
    commented, bare = False, []
    for line in lines[begin:]:
        if line.startswith("#"):
            commented = True
        elif line.startswith("["):
            commented = False
        elif "=" in line:
            if not commented:
                bare.append(line)
            commented = False
    assert not bare
