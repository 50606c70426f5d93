"""AdamW by torch's function: same bits as torch's class, without the compiler that the class loads."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from gleaner.actors.training.adamw import AdamW

LOADS = """
import sys, torch
from gleaner.actors.training.adamw import AdamW
weight = torch.ones(3)
optimizer = AdamW({"w": weight}, 0.1, (0.9, 0.95), 0.0)
optimizer.step({"w": torch.ones(3)})
assert weight[0] != 1
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_moves_weights_like_the_torch_class(weight_decay: float) -> None:
    torch.manual_seed(0)
    ours = {"a": torch.randn(4, 3), "b": torch.randn(5), "frozen": torch.randn(2)}
    theirs = {name: nn.Parameter(weight.clone()) for name, weight in ours.items()}
    one = AdamW(ours, 1e-2, (0.9, 0.95), weight_decay)
    other = torch.optim.AdamW(
        theirs.values(), lr=1e-2, betas=(0.9, 0.95), weight_decay=weight_decay, foreach=False
    )
    for step in range(5):
        if step == 3:
            one.set_learning_rate(1e-3)
            other.param_groups[0]["lr"] = 1e-3
        gradients = {name: torch.randn_like(weight) for name, weight in ours.items() if name != "frozen"}
        for name, weight in theirs.items():
            weight.grad = gradients.get(name)
        one.step({**gradients, "frozen": None})
        other.step()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(one.first["a"], other.state[theirs["a"]]["exp_avg"])
    assert torch.equal(one.second["a"], other.state[theirs["a"]]["exp_avg_sq"])


def test_adamw_resumes_from_given_moments() -> None:
    torch.manual_seed(1)
    whole, cut = {"a": torch.ones(3)}, {"a": torch.ones(3)}
    one, before = (AdamW(weights, 1e-2, (0.9, 0.95), 0.0) for weights in (whole, cut))
    gradients = [torch.randn(3) for _ in range(4)]
    for gradient in gradients:
        one.step({"a": gradient})
    for gradient in gradients[:2]:
        before.step({"a": gradient})
    after = AdamW(cut, 1e-2, (0.9, 0.95), 0.0)
    after.first["a"].copy_(before.first["a"])
    after.second["a"].copy_(before.second["a"])
    after.set_steps(2)
    for gradient in gradients[2:]:
        after.step({"a": gradient})
    assert torch.equal(whole["a"], cut["a"])


def test_step_loads_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
