"""A pytest plug-in that makes a mutant before any module of the product is imported.

`-p tests.mutant_plugin`, with the mutant's name in the environment, or "" (`gleaner.chaos.mutant_tests`).
The last line of a run names what was planted: a run without that line proves nothing.
"""

import os
import sys
from typing import Protocol

from gleaner.chaos.mutants import NoMutant, edits_of
from gleaner.chaos.mutate import CannotPlant, plant

NAME = os.environ.get("GLEANER_MUTANT", "")
CANNOT_PLANT = 70

if NAME:
    try:
        plant(edits_of(NAME))
    except (CannotPlant, NoMutant) as problem:
        sys.stderr.write(f"{problem}\n")
        sys.exit(CANNOT_PLANT)


class _Writes(Protocol):
    def write_line(self, line: str) -> None:
        """A line on the terminal."""


def pytest_terminal_summary(terminalreporter: _Writes) -> None:
    """See the module."""
    terminalreporter.write_line(f"mutant planted: {NAME}")
