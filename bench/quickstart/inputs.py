"""Inputs of a job that several sides run: its model and its problems."""

import math
import subprocess
import sys
from pathlib import Path

from safetensors import safe_open

from bench.quickstart import problems
from bench.quickstart.command_cost import environment
from bench.quickstart.contenders import Job
from gleaner.configs.load import load


def prepared(preset: str, settings: list[str], seed: int, folder: Path) -> Job:
    """The model and the problems of all sides."""
    folder.mkdir()
    config = load(preset, [f"job.seed={seed}", *settings])
    model = folder / "model"
    words = [word for one in (f"job.seed={seed}", *settings) for word in ("--set", one)]
    argv = [sys.executable, "-m", "gleaner.rlctl", "model", "new", str(model), "--config", preset, *words]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=environment())
    problems.write(config, model, folder)
    return Job(config, preset, tuple(settings), model, folder, seed)


def parameters(model: Path) -> int:
    """Number of parameters of a checkpoint."""
    with safe_open(model / "model.safetensors", framework="np") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118  # no dict
