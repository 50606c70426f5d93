"""The documentation: its examples run, and its links and named files exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLE = re.compile(r"<!-- example: (\S+) -->\n```python\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
SOURCE = re.compile(r"`((?:actors|configs|nodeagent|rlctl|supervisor|transport|chaos|bench|tests)/[\w/.]*)`")


def write_examples(page: str, folder: Path) -> None:
    """The files that a page shows, as a reader would make them."""
    found = EXAMPLE.findall((ROOT / "docs" / page).read_text())
    assert found, f"docs/{page} has no example"
    for name, text in found:
        (folder / name).write_text(text)


@pytest.mark.parametrize("page", ["architecture.md", "actors.md"])
def test_examples_of_a_page_pass_unchanged(page: str, tmp_path: Path) -> None:
    write_examples(page, tmp_path)
    # In a process of its own: its message kinds must not meet those of other tests.
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_example_actor_counts_over_crashes_and_restart(tmp_path: Path) -> None:
    write_examples("actors.md", tmp_path)
    for total in (2, 4):
        done = subprocess.run(
            [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        crash, reply = done.stdout.splitlines()
        assert crash.startswith("words#")
        assert crash.endswith("ValueError: on purpose")
        assert reply == f"be: {total}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_named_source_exists(page: Path) -> None:
    text = page.read_text()
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    missing += [path for path in SOURCE.findall(text) if not (ROOT / path).exists()]
    assert not missing
