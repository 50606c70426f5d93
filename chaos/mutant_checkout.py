"""Copy of the checkout with a mutant in its file.

Tests run in it: processes that they start have the mutant too, which an import hook cannot give them (the
sandbox of verifiers, fork servers). Owns the copy; the checkout itself is never changed.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gleaner.chaos.mutants import edit_of

LEFT_OUT = (".git", ".venv", ".tools", ".engines", ".bench", ".*_cache", ".hypothesis", "*.egg-info", "runs")


@contextmanager
def changed_checkout(checkout: Path, mutant: str) -> Iterator[Path]:
    """The folder of the copy, until the end of the context; with "" nothing is changed in it. Raises
    NoMutant."""
    edit = edit_of(mutant) if mutant else None
    with tempfile.TemporaryDirectory(prefix="gleaner-mutant-") as folder:
        Path(folder).chmod(0o755)  # tests of the sandbox run as another user, too
        copy = Path(folder, "checkout")
        # With links, as `gleaner/` has them, and with times, so that compiled files stay valid.
        shutil.copytree(checkout, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        (copy / ".venv").symlink_to((checkout / ".venv").resolve())
        if edit is not None:
            copy.joinpath(*edit.module.split(".")).with_suffix(".py").write_text(edit.new, encoding="utf-8")
        yield copy
