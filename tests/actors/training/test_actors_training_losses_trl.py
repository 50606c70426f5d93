"""Our losses against the results of TRL's own functions for the same tensors (`make reference`)."""

import json
import os
import subprocess
from pathlib import Path
from typing import TypedDict

import pytest
import torch

from gleaner.actors.training.losses import LOSSES, loss_sums

ROOT = Path(__file__).parents[3]
TRL = ROOT / "tests/trl"


class Case(TypedDict):
    """One batch of TRL's: rows of tokens, its answer, and the gradient of that in each log-prob."""

    name: str
    lengths: list[int]
    logprobs: list[list[float]]
    old: list[list[float]]
    advantages: list[float]
    clip_low: float
    clip_high: float
    cap: float | None
    loss: float
    gradient: list[list[float]]


def cases(file: Path) -> list[Case]:
    found: list[Case] = json.loads(file.read_text())["cases"]
    return found


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=torch.float64)


def named(case: Case) -> str:
    return f"{case['name']}-{'capped' if case['cap'] else 'plain'}"


ALL = cases(TRL / "losses.json") + cases(TRL / "losses_ppo.json")


@pytest.mark.parametrize("case", ALL, ids=named)
def test_loss_and_gradient_equal_those_of_trl(case: Case) -> None:
    rule = LOSSES[case["name"]]
    logprobs = flat(case["logprobs"]).requires_grad_()
    lengths = torch.tensor(case["lengths"])
    sums = loss_sums(
        rule,
        logprobs,
        flat(case["old"]),
        torch.tensor(case["advantages"], dtype=torch.float64).repeat_interleave(lengths),
        lengths,
        clip_low=case["clip_low"],
        clip_high=case["clip_high"],
        importance_cap=case["cap"],
    )
    loss = sums.loss / (sums.samples if rule.per_sample else sums.tokens)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    torch.testing.assert_close(loss.item(), case["loss"], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(logprobs.grad, flat(case["gradient"]), rtol=1e-9, atol=1e-12)


def test_every_loss_has_cases_with_clipped_tokens() -> None:
    assert {case["name"] for case in ALL} == set(LOSSES)
    for case in ALL:
        assert any(value == 0 for row in case["gradient"] for value in row) or case["cap"]


@pytest.mark.parametrize(("env", "kept"), [("trl", "losses.json"), ("trl_ppo", "losses_ppo.json")])
def test_kept_answers_match_the_installed_trl(env: str, kept: str, tmp_path: Path) -> None:
    python = ROOT / ".bench" / env / "bin/python"
    if not python.exists():
        pytest.skip("`make reference` installs TRL into an environment of its own")
    again = tmp_path / kept
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, TRL / "losses.py", again], check=True, env=clean, timeout=100)
    for ours, theirs in zip(cases(again), cases(TRL / kept), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-12)


def test_correction_changes_nothing_on_policy() -> None:
    logprobs = torch.tensor([-0.5, -2.0, -1.0], dtype=torch.float64, requires_grad=True)
    for name, rule in LOSSES.items():
        found = []
        for cap in (None, 2.0):
            sums = loss_sums(
                rule,
                logprobs,
                logprobs.detach().clone(),
                torch.tensor([1.0, 1.0, -2.0], dtype=torch.float64),
                torch.tensor([2, 1]),
                clip_low=0.2,
                clip_high=0.28,
                importance_cap=cap,
            )
            found.append(torch.autograd.grad(sums.loss, logprobs)[0])
            assert sums.truncated.item() == 0, name
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_stale_token_weight_is_its_capped_ratio() -> None:
    logprobs = torch.log(torch.tensor([0.1, 0.3, 0.9], dtype=torch.float64)).requires_grad_()
    sampled = torch.log(torch.tensor([0.2, 0.2, 0.1], dtype=torch.float64))
    sums = loss_sums(
        LOSSES["dapo"],
        logprobs,
        sampled,
        torch.ones(3, dtype=torch.float64),
        torch.tensor([3]),
        clip_low=0.2,
        clip_high=0.28,
        importance_cap=2.0,
    )
    sums.loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, -torch.tensor([0.5, 1.5, 2.0], dtype=torch.float64))
    assert sums.truncated.item() == 1
