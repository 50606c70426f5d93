"""A pytest plug-in that asserts that the tests run with a mutant.

`-p tests.mutant_plugin`, in a copy of the checkout, with the mutant's name and the SHA-256 of its file in the
environment, or "" (`gleaner.chaos.mutant_tests`). The last line of a run names what was planted: a run
without that line proves nothing.
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import Protocol

from gleaner.chaos.mutate import source_of

NAME, DIGEST = os.environ.get("GLEANER_MUTANT", ""), os.environ.get("GLEANER_MUTANT_SOURCE", "")
CANNOT_PLANT = 70


def _planted() -> bool:
    """The file that is imported, or was, has the mutant."""
    module = NAME.partition(":")[0]
    source, path = source_of(module)
    imported = getattr(sys.modules.get(module), "__file__", None)
    same = imported is None or Path(imported).resolve() == path.resolve()
    return same and hashlib.sha256(source.encode()).hexdigest() == DIGEST


if NAME and not _planted():
    sys.stderr.write(f"{NAME} is not in the file that is imported\n")
    sys.exit(CANNOT_PLANT)


class _Writes(Protocol):
    def write_line(self, line: str) -> None:
        """A line on the terminal."""


def pytest_terminal_summary(terminalreporter: _Writes) -> None:
    """See the module."""
    if not NAME or _planted():
        terminalreporter.write_line(f"mutant planted: {NAME}")
