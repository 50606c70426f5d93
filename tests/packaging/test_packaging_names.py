"""One name for each module: the linter refuses the short import name.

A checkout would allow the short name as well.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(link.name for link in (ROOT / "gleaner").iterdir() if link.is_symlink())


def findings(source: str) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name("ruff"), "check", "--no-cache", "--select", "TID251",
         "--output-format", "concise", "--stdin-filename", "actors/planted.py", "-"],
        cwd=ROOT, input=source, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def test_every_package_folder_links_to_a_top_folder() -> None:
    assert FOLDERS == ["actors", "chaos", "configs", "nodeagent", "rlctl", "sim", "supervisor", "transport"]
    for name in FOLDERS:
        assert (ROOT / "gleaner" / name).resolve() == ROOT / name
        assert (ROOT / "gleaner" / name).readlink() == Path("..", name)


def test_linter_bans_every_short_import_name() -> None:
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "TID251" in lint["select"]
    assert sorted(lint["flake8-tidy-imports"]["banned-api"]) == FOLDERS


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize(
    "form",
    ["import {0}", "import {0}.one", "from {0} import one", "from {0}.one import two", "import {0} as x"],
)
def test_planted_short_import_is_found(form: str, name: str) -> None:
    assert "TID251" in findings(form.format(name))


def test_full_and_foreign_imports_are_allowed() -> None:
    assert "TID251" not in findings(
        "import gleaner.actors\nfrom gleaner import sim\nimport asyncio.transports\n"
    )
