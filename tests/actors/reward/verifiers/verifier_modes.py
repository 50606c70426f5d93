"""Isolation modes of this machine, for tests of verifiers."""

import pytest

from gleaner.actors.reward.sandbox.detection import NoSandbox, detect
from gleaner.actors.reward.sandbox.port import Isolation

MODES = [mode.value for mode in Isolation]


def needs(mode: str) -> None:
    """Skip the test where the mode does not work."""
    try:
        detect(mode)
    except NoSandbox as problem:
        pytest.skip(str(problem))
