"""Losses of TRL's own functions for a few batches: `python losses.py OUT`.

It runs in an environment with TRL. The newest release has GRPO, DAPO and GSPO (`GRPOTrainer._compute_loss`),
0.11.4 the last PPO that can be called alone (`PPOTrainer.loss`); each writes the cases that it knows. Nothing
of Gleaner is imported here. `make reference` renews `tests/trl/losses.json` and `losses_ppo.json`, and the
tests compare our losses with them.
"""

import json
import random
import sys
from collections import defaultdict
from types import SimpleNamespace

import torch
import trl

CAP = 1.3


def batch(seed: int) -> dict:
    """Lists of one number a token, sample after sample; ratios far enough from 1 that every clip bites."""
    rng = random.Random(seed)
    lengths = [rng.randint(1, 9) for _ in range(6)]
    return {
        "lengths": lengths,
        "logprobs": [[rng.uniform(-3, -0.1) for _ in range(n)] for n in lengths],
        "old": [[rng.uniform(-3, -0.1) for _ in range(n)] for n in lengths],
        "advantages": [rng.gauss(0, 1) for _ in lengths],
    }


def padded(rows: list[list[float]]) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [0.0] * (width - len(row)) for row in rows], dtype=torch.float64)


def mask_of(case: dict) -> torch.Tensor:
    return padded([[1.0] * n for n in case["lengths"]])


def with_answer(case: dict, settings: dict, loss: torch.Tensor, logprobs: torch.Tensor) -> dict:
    loss.backward()
    gradient = [row[:n].tolist() for row, n in zip(logprobs.grad, case["lengths"], strict=True)]
    return {**case, **settings, "loss": loss.item(), "gradient": gradient}


def grpo_case(seed: int, name: str, low: float, high: float, cap: float | None) -> dict:
    """TRL's loss on given log-probs; an object with its attributes replaces its trainer."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    case = batch(seed)
    logprobs = padded(case["logprobs"]).requires_grad_()
    sampled, mask = padded(case["old"]), mask_of(case)
    inputs = {
        "prompt_ids": torch.zeros(6, 1, dtype=torch.int64),
        "prompt_mask": torch.ones(6, 1, dtype=torch.int64),
        "completion_ids": torch.zeros(mask.shape, dtype=torch.int64),
        "completion_mask": mask,
        "advantages": torch.tensor(case["advantages"], dtype=torch.float64),
        "num_items_in_batch": mask.sum(),
    }
    if cap is None:
        inputs["old_per_token_logps"] = sampled
    else:  # as in mode token_truncate: the old policy is the one that trains
        inputs["importance_sampling_ratio"] = torch.exp((logprobs.detach() - sampled) * mask).clamp(max=cap)
    stub = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(mask), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="sequence" if name == "gspo" else "token",
        loss_type="dapo" if name == "dapo" else "grpo",
        beta=0.0,
        epsilon_low=low,
        epsilon_high=high,
        use_vllm=cap is not None,
        vllm_importance_sampling_correction=True,
        args=SimpleNamespace(delta=None, steps_per_generation=1),
        current_gradient_accumulation_steps=1,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )
    loss = GRPOTrainer._compute_loss(stub, None, inputs)
    return with_answer(case, {"name": name, "clip_low": low, "clip_high": high, "cap": cap}, loss, logprobs)


def ppo_case(seed: int, clip: float) -> dict:
    """The policy's part of TRL's PPO loss; the critic's is left out."""
    from trl.trainer.ppo_trainer import PPOTrainer

    case = batch(seed)
    logprobs = padded(case["logprobs"]).requires_grad_()
    mask = mask_of(case)
    zeros = torch.zeros_like(mask)
    stub = SimpleNamespace(
        config=SimpleNamespace(cliprange_value=0.2, cliprange=clip, vf_coef=0.0, ratio_threshold=1e9)
    )
    advantages = torch.tensor(case["advantages"], dtype=torch.float64)[:, None] * mask
    loss, _, _ = PPOTrainer.loss(
        stub,
        padded(case["old"]),
        zeros,
        torch.zeros(*mask.shape, 2),
        zeros,
        logprobs,
        mask,
        advantages,
        zeros,
    )
    return with_answer(case, {"name": "ppo", "clip_low": clip, "clip_high": 9.0, "cap": None}, loss, logprobs)


def main(out: str) -> None:
    if trl.__version__.startswith("0.11."):
        cases = [ppo_case(seed, clip) for seed, clip in ((1, 0.2), (2, 0.1), (3, 0.4))]
    else:
        cases = [
            grpo_case(seed, name, low, high, cap)
            for name, low, high in (("grpo", 0.2, 0.2), ("dapo", 0.2, 0.28), ("gspo", 0.1, 0.3))
            for seed in (1, 2, 3)
            for cap in (None, CAP)
        ]
    with open(out, "w") as file:
        json.dump({"trl": trl.__version__, "cases": cases}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
