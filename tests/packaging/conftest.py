"""Fixtures: a wheel of this checkout, built from its sdist, and its installation."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.shared_results import once

ROOT = Path(__file__).parents[2]
NOT_BUILT = shutil.ignore_patterns(
    ".*", "runs", "build", "dist", "docs", "tests", "*.egg-info", "__pycache__"
)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`python -m build` in a copy: the sdist first, and the wheel from that. Needs no network."""

    def build(folder: Path) -> None:
        shutil.copytree(ROOT, folder / "checkout", symlinks=True, ignore=NOT_BUILT)
        argv = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist"]
        done = subprocess.run([*argv, folder / "checkout"], capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    folder = once(tmp_path_factory, "packaging", build)
    assert len(list((folder / "dist").glob("*.tar.gz"))) == 1
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="session")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that an installation of the wheel adds to `site-packages`."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder
