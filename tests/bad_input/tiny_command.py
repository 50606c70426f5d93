"""The real command line, and the settings of the smallest run."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CONFIG = Path(__file__).with_name("tiny.toml")

Refusal = tuple[int, str]
Rlctl = Callable[..., Refusal]


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a real command line to its end."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100.0,
        check=False,
        env=dict(os.environ),
    )
