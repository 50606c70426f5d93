"""Breaks the verifier of each reward worker whose interpreter finds this folder.

`BROKEN_VERIFIER` gives the way. Problems are unchanged. Python imports this module at its start.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

DEED = "BROKEN_VERIFIER"


def fail(deed: str) -> float:
    """The result of every score."""
    match deed:
        case "raises":
            raise ValueError("this verifier is broken")
        case "nan":
            return float("nan")
        case "hangs":
            time.sleep(3600.0)
        case "ends":
            os._exit(7)
    raise AssertionError(f"no such deed: {deed}")


def install(deed: str) -> None:
    """Replace the scorer that workers load."""
    from gleaner.actors.reward import worker

    whole = worker.task

    class Broken:
        def __init__(self, config: Mapping[str, object]) -> None:
            self._whole = whole(config)

        def problem(self, split: str, index: int) -> Any:
            return self._whole.problem(split, index)

        def score(self, split: str, index: int, tokens: Sequence[int]) -> float:
            return fail(deed)

    worker.task = Broken  # type: ignore[assignment]


if "gleaner.actors.reward.worker" in sys.orig_argv and DEED in os.environ:
    install(os.environ[DEED])
