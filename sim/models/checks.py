"""Models against public measurements: `python -m gleaner.sim.models.checks`.

Owns the list of public measurements and claims, and the models' value for each. It is a report, not a proof:
several constants were fitted to the first group (`hardware.toml` names them), the others were not used.

Contexts are not published with inter-token latencies. A steady batch holds requests of every age; their mean
context is taken as 100 tokens of prompt and 0.58 of the mean response, which matches the batches that the
cache limited in the same data.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from gleaner.sim.models.engine_cost import engine_cost, kv_capacity_tokens
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.lengths import RLBOOST_14B, LengthLaw
from gleaner.sim.models.rollout_time import Fleet, colocated_step, hybrid_step
from gleaner.sim.models.shapes import model_shape
from gleaner.sim.models.training_cost import Passes, training_cost

ML_ENERGY = "ML.ENERGY leaderboard (Feb 2026): vLLM, bfloat16, median inter-token latency"
VLLM_2024 = "vLLM performance benchmark, Buildkite build 9515 (2024): 8 requests, 32 tokens in, 128 out"
SILYBENCH = "silybench (Sep 2026): vLLM 0.30, bfloat16, 128 tokens in and 1,024 out"
LLAMA_8B = msgspec.structs.replace(model_shape("qwen3-8b"), layers=32, intermediate=14336, vocabulary=128256)
LLAMA_70B = msgspec.structs.replace(LLAMA_8B, layers=80, hidden=8192, heads=64, intermediate=28672)


@dataclass(frozen=True, slots=True)
class Check:
    """One measured or claimed figure and the model's. fitted: constants were chosen to meet it."""

    source: str
    what: str
    measured: float
    modelled: float
    unit: str
    fitted: bool = False

    @property
    def off(self) -> float:
        """The model's error as a share of the measured value."""
        return self.modelled / self.measured - 1.0


# model, device, tensor parallelism, requests, mean response, measured ms
_LATENCIES = [
    ("qwen3-8b", "h100", 1, 8, 647, 8.20),
    ("qwen3-8b", "h100", 1, 64, 645, 13.95),
    ("qwen3-8b", "h100", 1, 256, 654, 31.36),
    ("qwen3-14b", "h100", 1, 8, 620, 12.54),
    ("qwen3-14b", "h100", 1, 64, 617, 18.94),
    ("qwen3-14b", "h100", 1, 253, 625, 38.40),
    ("qwen3-32b", "h100", 1, 8, 638, 25.21),
    ("qwen3-32b", "h100", 2, 8, 631, 15.06),
    ("qwen3-32b", "h100", 2, 64, 635, 22.45),
    ("qwen3-32b", "h100", 2, 256, 634, 44.45),
    ("qwen3-8b", "h100", 1, 8, 7854, 9.70),
    ("qwen3-8b", "h100", 1, 63, 8367, 26.64),
    ("qwen3-14b", "h100", 1, 32, 6939, 21.55),
    ("qwen3-32b", "h100", 2, 64, 7058, 32.28),
]


def latencies() -> Iterator[Check]:
    """Inter-token latencies of the models that the constants were fitted to."""
    for model, device, tp, rows, response, measured_ms in _LATENCIES:
        cost = engine_cost(model_shape(model), HostDevices(device, tp, tp))
        context = rows * (100 + 0.58 * response)
        what = f"{model} on {device} TP {tp}, {rows} requests, responses of {response}"
        yield Check(ML_ENERGY, what, measured_ms, 1e3 * cost.decode(rows, context), "ms", fitted=True)


def other_engines() -> Iterator[Check]:
    """Measurements to which nothing was fitted, but for the capacity."""
    for shape, name, device, tp, rows, context, ms, source in (
        (LLAMA_70B, "llama-3.1-70b", "h100", 4, 8, 8 * 300, 16.57, ML_ENERGY),
        (LLAMA_70B, "llama-3.1-70b", "h100", 4, 256, 256 * 302, 39.84, ML_ENERGY),
        (LLAMA_8B, "llama-3.1-8b", "h200", 1, 8, 8 * 96, 833.4 / 128, VLLM_2024),
        (LLAMA_70B, "llama-3.1-70b", "h200", 4, 8, 8 * 96, 2077.5 / 128, VLLM_2024),
    ):
        modelled = 1e3 * engine_cost(shape, HostDevices(device, tp, tp)).decode(rows, context)
        yield Check(source, f"{name} on {device} TP {tp}, {rows} requests", ms, modelled, "ms")
    newer = 1e3 * engine_cost(model_shape("qwen3-8b"), HostDevices("h100")).decode(327, 327 * 640)
    yield Check(SILYBENCH, "qwen3-8b on h100, a newer engine, 327 requests", 327 / 13.322, newer, "ms")
    capacity = kv_capacity_tokens(model_shape("qwen3-8b"), HostDevices("h100"))
    yield Check(SILYBENCH, "qwen3-8b on h100, cache", 376_800, capacity, "tokens", fitted=True)


def claims() -> Iterator[Check]:
    """Figures of the papers that this project builds on."""
    for model, billions in (("qwen3-8b", 8.2), ("qwen3-14b", 14.8), ("qwen3-32b", 32.8)):
        yield Check(
            "Qwen3 technical report",
            f"{model} parameters",
            billions,
            model_shape(model).parameters / 1e9,
            "10^9",
        )
    full, one = Passes(recompute=True).forwards, 1.0
    for model, log_prob_s, update_s in (
        ("7B", 9.66, 38.08),
        ("30B-A3B", 19.62, 56.35),
        ("235B", 20.11, 82.39),
    ):
        yield Check(
            "PlexRL table 2", f"{model}: actor update over log-probs", update_s / log_prob_s, full / one, "x"
        )
    yield from _rlboost()
    yield from _rollpacker()


def _rlboost() -> Iterator[Check]:
    """14B, 128 x 8 responses of up to 14,336 tokens; trainer of 8 H100, instances of 2, all at TP 2."""
    shape = model_shape("qwen3-14b")
    host_devices, passes = (
        HostDevices("h100", 8, 2),
        Passes(recompute=True, old_logprobs=True, reference=True),
    )
    train = training_cost(shape, host_devices, passes, offload=True)
    fleet = Fleet(shape, law=RLBOOST_14B, groups=128, samples=8, limit=14_336, prompt=150, slots=256)
    alone = colocated_step(fleet, host_devices, train)
    source = "RLBoost, Qwen3-14B"
    yield Check(
        source, "share of rollout in a co-located step (up to)", 0.73, alone.rollout_s / alone.step_s, ""
    )
    steps = {
        count: hybrid_step(fleet, host_devices, HostDevices("h100", 2, 2), count, train) for count in (1, 6)
    }
    yield Check(source, "throughput with 1 instance", 1.37, alone.step_s / steps[1].step_s, "x")
    yield Check(source, "throughput with 6 instances", 1.37 * 1.64, alone.step_s / steps[6].step_s, "x")


def _rollpacker() -> Iterator[Check]:
    """14B, 128 x 8 responses of up to 16k tokens, P75 of 755 to 1,100; 32 H800, rollout at TP 2."""
    shape, host_devices = model_shape("qwen3-14b"), HostDevices("h100", 32, 2)
    law = LengthLaw(median=600.0, sigma=1.0, correlation=0.6)
    fleet = Fleet(shape, law=law, groups=128, samples=8, limit=16_384, prompt=300, slots=256)
    step = colocated_step(
        fleet, host_devices, training_cost(shape, host_devices, Passes(old_logprobs=True, reference=True))
    )
    share = step.rollout_s / step.step_s
    yield Check("RollPacker table 1 (math)", "rollout over rollout and training", 0.72 / 0.95, share, "")


GROUPS: list[tuple[str, Callable[[], Iterator[Check]]]] = [
    ("Decode steps, fitted", latencies),
    ("Other engines and devices", other_engines),
    ("Papers", claims),
]


def report() -> Iterator[str]:
    """The table, line by line."""
    for title, group in GROUPS:
        yield f"{title}:"
        for check in group():
            mark = " (fitted)" if check.fitted else ""
            yield (
                f"  {check.off:+7.1%}  {check.modelled:10.4g} {check.unit} modelled, {check.measured:.4g} "
                f"measured: {check.what} [{check.source}]{mark}"
            )


def main() -> None:
    """Print the table."""
    for line in report():
        print(line)


if __name__ == "__main__":
    main()
